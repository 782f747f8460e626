"""``python -m tuiprof``."""

from tuiprof.cli import entry

entry()
