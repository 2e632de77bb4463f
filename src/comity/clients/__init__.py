"""MCP client applications whose configuration Comity reads and writes."""
