"""Ladders: published optimisations as variants of one script, measured against each other."""
