"""Memory: documents that merge, who may edit them, how they look, and a store that never runs ahead of the disk."""
