"""Launching, supervising and recording a script, and requests to it."""
