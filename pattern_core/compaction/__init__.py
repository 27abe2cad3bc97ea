"""Compaction: messages that leave a full window are chosen, summarised, archived, and never lost."""
