"""Report to text, JSON, CSV and Markdown. Walks a report; computes nothing."""
