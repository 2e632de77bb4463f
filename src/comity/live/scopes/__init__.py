"""Scopes of live servers: what a tool call may reach."""
