"""A calculator with units: exact where it can be, bounded always, and never Python's own evaluation."""
