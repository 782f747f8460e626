"""The trace screen."""
