"""Bringing the session folders of other hosts here, over ssh."""
