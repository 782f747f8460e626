"""The timeline of a trace, and moving in it."""
