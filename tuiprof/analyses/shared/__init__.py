"""Code shared by analyses and rules."""
