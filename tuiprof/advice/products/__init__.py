"""Rules about which matrix products a step computes, and of what."""
