"""Tools: what an agent can do, and what a model reads about it."""
