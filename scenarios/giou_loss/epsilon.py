"""What is added to both divisors of the generalised IoU (Rezatofighi et al. 2019)."""

EPSILON = 1e-5
