"""For members of a topic."""
