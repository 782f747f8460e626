"""The ladder screen."""
