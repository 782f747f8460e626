"""Data recorded for failed runs: stacks, stalls, NaN, out-of-memory errors."""
