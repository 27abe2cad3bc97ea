"""Tool rules: they limit and order an agent's tool calls, are enforced when calls run, and explained to the model."""
