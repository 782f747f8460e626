"""The live screen: a run as it goes, as it ended, or replayed."""
