"""The tool registry: tools as REST endpoints, and OpenAPI."""
