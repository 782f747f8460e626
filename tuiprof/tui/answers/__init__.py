"""What the analyses say: verdict, tables, details of one row or event."""
