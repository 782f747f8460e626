"""Opening traces away from the screen, and choosing which."""
