"""What changed between two traces."""
