"""What runs inside the profiled process: standard library only, Python 3.9+, fails open."""
