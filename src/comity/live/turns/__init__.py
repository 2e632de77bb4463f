"""Model turns: how they are queued, run and stored."""
