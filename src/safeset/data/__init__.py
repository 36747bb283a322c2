"""Data: one file for each source, each returning the same value, a `Dataset`."""
