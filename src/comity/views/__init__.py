"""Views: named subsets of tools, each with its own endpoint."""
