"""A session as it goes on: its logs followed, folded, judged, replayed."""
