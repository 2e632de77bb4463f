"""The MCP registry: search it, and turn an entry of it into a server of the configuration."""
