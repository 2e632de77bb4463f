"""Transports to servers: stdio, Streamable HTTP and HTTP with SSE."""
