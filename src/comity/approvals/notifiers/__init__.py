"""Notices of approval requests: Slack, Microsoft Teams, email, Web Push and webhooks."""
