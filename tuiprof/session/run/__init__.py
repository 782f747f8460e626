"""Launching a script, supervising and recording it, and requests to it while it runs."""
