"""What several analyses and rules are made of."""
