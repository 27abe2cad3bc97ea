"""One module per table family: its row types and every query on it."""
