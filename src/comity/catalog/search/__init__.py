"""Tool search: words, index, ranking and the search service."""
