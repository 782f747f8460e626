"""Rules about device work that a step does not need."""
