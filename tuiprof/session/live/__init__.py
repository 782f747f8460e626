"""The state of a session: logs are followed or replayed, folded, and checked for alerts."""
