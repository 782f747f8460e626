"""Rules about host waits for the device."""
