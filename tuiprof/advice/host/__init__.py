"""Rules about what the host does besides."""
