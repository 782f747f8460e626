"""Session folders: what they hold, read without following the whole log."""
