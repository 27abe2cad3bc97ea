"""Folders and files that agents may read: names, the disk, readers, passages, indexing."""
