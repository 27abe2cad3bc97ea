"""The original's archives, versions 1 to 3: reading, reviewing, converting and writing them."""
