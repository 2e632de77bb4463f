"""The HTTP server and the HTTP client."""
