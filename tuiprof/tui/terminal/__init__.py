"""The terminal: capabilities, output, themes, characters and keys."""
