"""Code shared by rules."""
