"""The ranks screen: which rank of a job is late in which step."""
