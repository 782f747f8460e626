"""Where steps end when no framework says so: lines, functions and loops of the script."""
