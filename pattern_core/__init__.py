"""What agents do: turns and their journal, memory that merges, tools, models. No SQL, no HTTP server."""
