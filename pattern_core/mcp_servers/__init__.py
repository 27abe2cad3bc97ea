"""Tools of MCP servers: programs and addresses that the operator configured, each owned by one task."""
