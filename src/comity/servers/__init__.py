"""Upstream servers: transports, supervision, sandbox and registration."""
