"""Outgoing webhooks."""
