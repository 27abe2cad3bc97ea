"""The archive: entries that agents keep for good, find again and supersede, never overwrite."""
