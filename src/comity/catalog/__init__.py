"""The tools, resources and prompts of all servers: review, search and toolsets."""
