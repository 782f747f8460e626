"""One file a format. A module here defines ``FORMAT`` and is found by itself; files are sniffed by content."""
