"""The archive: entries that agents store permanently, find again and supersede, never overwrite."""
