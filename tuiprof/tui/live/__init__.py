"""The live screen: a run while it runs, its end, or its replay."""
