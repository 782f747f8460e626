"""Entering a process that runs already, and asking it where it is."""
