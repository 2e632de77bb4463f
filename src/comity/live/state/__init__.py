"""State that the gateway stores for live servers."""
