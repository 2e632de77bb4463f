"""Semantic search: embeddings of tools and queries."""
