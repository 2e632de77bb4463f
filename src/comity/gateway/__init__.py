"""The MCP endpoints and the call pipeline."""
