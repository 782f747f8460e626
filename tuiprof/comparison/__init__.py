"""What runs amount to: the headline of one, limits on its figures, two side by side, many over time."""
