"""Rules about other work of the host."""
