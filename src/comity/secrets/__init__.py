"""Secrets: sealing of stored credentials, key services, and the sources of `${secret:NAME}`."""
