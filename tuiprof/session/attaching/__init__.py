"""Attaching to a running process, and requesting its stacks."""
