"""The HTTP client: name resolution, connections and the connection pool."""
