"""Launching a script, supervising and recording it, and asking things of it while it runs."""
