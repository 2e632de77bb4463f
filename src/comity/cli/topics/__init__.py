"""The terminal view of a topic."""
