"""The application: navigation, keys, palette, help, tour, inline view and snapshots."""
