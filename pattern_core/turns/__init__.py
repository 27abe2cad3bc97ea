"""Turns: from an accepted message to the one terminal event."""
