"""Rules about gradients that are computed, kept or cleared without need."""
