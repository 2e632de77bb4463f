"""Accounts at remote servers: sign-in, tokens, and the account that each call uses."""
