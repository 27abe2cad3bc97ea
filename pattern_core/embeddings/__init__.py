"""Embeddings: vectors of texts, their providers and their storage."""
