"""Cuts a file into stretches and decodes them on as many cores as pay."""
