"""A running session: its logs followed, folded, checked for alerts, replayed."""
