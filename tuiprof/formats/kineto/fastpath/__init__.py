"""Reads lines in exactly libkineto's format, one column at a time."""
