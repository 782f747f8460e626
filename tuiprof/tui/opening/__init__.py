"""Opening traces without blocking the screen, and choosing among the captures of a run."""
