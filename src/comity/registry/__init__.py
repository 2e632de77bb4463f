"""The tool registry: tools as REST endpoints, OpenAPI, and servers as the MCP registry."""
