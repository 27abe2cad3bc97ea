"""The journal's tables: what is stored before and after each moment of a turn, one module per table."""
