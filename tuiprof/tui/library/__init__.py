"""The library: scenarios, sessions and traces."""
