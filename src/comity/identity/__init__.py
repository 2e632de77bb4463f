"""Principals, API keys, OAuth tokens and authentication."""
