"""Being no trouble in somebody else's process: threads, descriptors, environment, exceptions."""
