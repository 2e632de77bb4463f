"""Grants, guardrails, server permissions, risk and rate limits."""
