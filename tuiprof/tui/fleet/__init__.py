"""All ranks of a job at once: who comes late, in which step."""
