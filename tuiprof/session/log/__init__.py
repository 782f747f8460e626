"""The lines of a session's log, and how they are appended."""
