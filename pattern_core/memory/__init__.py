"""Memory: mergeable documents, permissions, renderings, and a store that is never ahead of the disk."""
