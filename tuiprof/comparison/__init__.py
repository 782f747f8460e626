"""Two runs side by side: opened, told apart, compared."""
