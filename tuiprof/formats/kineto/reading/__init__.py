"""Splits a file into stretches and decodes them on several cores if that is faster."""
