"""Recognition and removal of secrets in values, texts and messages."""
