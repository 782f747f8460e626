"""Dialogs: forms, lists to choose from, text to read."""
