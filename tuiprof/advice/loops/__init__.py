"""Rules about what a loop repeats instead of doing it once."""
