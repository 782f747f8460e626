"""Results of the analyses: verdict, tables, and details of a row or event."""
