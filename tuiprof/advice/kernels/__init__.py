"""Rules about device work and how it is launched."""
