"""The server: HTTP, command line, accounts and the supervisor of constellations."""
