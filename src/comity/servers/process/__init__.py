"""Server processes: start, resource limits, cleanup and sandbox."""
