"""Validation of tool arguments: JSON Schema, validators and code safety."""
