"""Tools: what an agent can do, and their descriptions for models."""
