"""The terminal: what it can show, colours, signs and keys."""
