"""What the programs of XLA tell: which instruction an event carries out, and what a program computes."""
