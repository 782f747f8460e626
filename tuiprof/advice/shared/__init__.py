"""What several rules are made of."""
