"""Approval requests to people, pending calls, notifications and suggested grants."""
