"""Reads lines in exactly the form in which libkineto writes them, a column at a time."""
