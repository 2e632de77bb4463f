"""Servers that agents register at run time."""
