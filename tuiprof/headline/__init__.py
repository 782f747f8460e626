"""What one trace says first, worked out in a process of its own and kept."""
