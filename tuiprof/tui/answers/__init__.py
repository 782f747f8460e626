"""Results of the analyses: verdict, tables, details of one row or event."""
