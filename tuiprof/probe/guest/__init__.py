"""Running inside another program's process without disturbing it: threads, descriptors, environment, exceptions."""
