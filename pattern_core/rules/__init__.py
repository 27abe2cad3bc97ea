"""Tool rules: what an agent may call when, enforced where calls run and explained to the model in words."""
