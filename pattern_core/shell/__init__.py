"""Commands on this machine: read before they run, confined while they run, and gone when they are over."""
