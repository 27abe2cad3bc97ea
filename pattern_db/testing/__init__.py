"""Stand-ins for tests."""
