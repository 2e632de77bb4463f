"""Pushes of live servers, and inbound webhooks."""
