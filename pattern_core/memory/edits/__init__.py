"""What can be asked to change in a block, and what comes of it."""
