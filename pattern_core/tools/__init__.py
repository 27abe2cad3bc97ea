"""Tools: what an agent can do, and what a model is told about it."""
