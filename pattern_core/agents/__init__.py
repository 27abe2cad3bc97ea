"""Agents and their turns: roster, prompt, journal, the turn itself, recovery, and the actors that run them."""
