"""Budgets: what turns, agents, groups and the constellation may spend, reserved before each call and settled after."""
