"""Copies the session folders of other hosts over ssh."""
