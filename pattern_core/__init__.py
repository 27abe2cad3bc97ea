"""Agents: turns and their journal, mergeable memory, tools, models. No SQL, no HTTP server."""
