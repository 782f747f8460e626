"""Sessions: their logs and folders, launching and attaching, following and replaying."""
