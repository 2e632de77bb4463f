"""Both ends of a conversation: calls, client sessions and upstream connections."""
