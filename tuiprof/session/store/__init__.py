"""Session directories: metadata, status, output, and runs on several hosts."""
