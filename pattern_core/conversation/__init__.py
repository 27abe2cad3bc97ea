"""An agent's conversation: its messages as shown to a model, their opening, and imported messages."""
