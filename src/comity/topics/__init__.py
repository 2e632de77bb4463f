"""MCPx topics: members, envelopes and proposals."""
