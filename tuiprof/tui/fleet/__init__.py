"""All ranks of a job at once: which rank is late in which step."""
