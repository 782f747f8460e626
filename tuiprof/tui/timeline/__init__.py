"""The timeline of a trace."""
