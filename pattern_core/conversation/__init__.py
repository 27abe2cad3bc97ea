"""An agent's conversation: its messages as a model is shown them, what opens them, and past messages from elsewhere."""
