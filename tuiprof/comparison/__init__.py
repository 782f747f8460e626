"""Two runs side by side: opened, named, compared."""
