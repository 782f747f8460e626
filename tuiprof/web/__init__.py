"""The dashboard in a browser: a page on this machine, and a process of the dashboard for each time it is opened."""
