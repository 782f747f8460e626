"""The protobuf wire format."""
