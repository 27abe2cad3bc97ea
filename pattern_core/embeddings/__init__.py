"""Texts as vectors: who makes them and how they are kept."""
