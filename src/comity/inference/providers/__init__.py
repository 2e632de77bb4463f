"""Adapters for the APIs of language model providers."""
