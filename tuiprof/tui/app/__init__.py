"""The application: which screen, keys, palette, help and tour."""
