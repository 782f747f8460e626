"""Readers of trace files, one module or folder per format, detected by content and never by name.

A module here defines ``FORMAT = Format(...)`` and is discovered automatically.
"""

from tuiprof.formats.open import open_set, open_trace
from tuiprof.formats.registry import Cancelled, Format, Options, available, first_bytes, sniff

__all__ = ["Cancelled", "Format", "Options", "available", "first_bytes", "open_set", "open_trace", "sniff"]
