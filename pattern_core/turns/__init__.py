"""Turns: from an accepted message to its terminal event."""
