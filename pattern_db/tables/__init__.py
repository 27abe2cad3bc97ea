"""One module per table family: its row types and every query on it. Each function runs in its caller's transaction."""
