"""For those who take part in a topic: a member of it in Python, and what it can be made into."""
