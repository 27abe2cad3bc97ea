"""Tools of MCP servers: configured programs and addresses, each owned by one task."""
