"""Rules about the work of the device, and how it is launched."""
