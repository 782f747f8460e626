"""What is kept for when a run goes wrong: stacks, stalls, NaN, memory that ran out."""
