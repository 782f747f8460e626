"""The session directory: launch, record, append, tail, list, replay."""
