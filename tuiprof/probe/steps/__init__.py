"""What a step is: where one ends, counting them, and their phases."""
