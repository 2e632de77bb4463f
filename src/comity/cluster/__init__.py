"""Nodes of one gateway: messages between them, leases, membership and streams."""
