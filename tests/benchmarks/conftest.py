"""What all benchmarks share."""

import os

# What is installed has its bytecode; a checkout has it only where Python may write it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
