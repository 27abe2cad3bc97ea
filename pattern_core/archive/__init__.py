"""The archive: entries that agents keep permanently, find again and supersede, never overwrite."""
