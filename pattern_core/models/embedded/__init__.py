"""The embedded provider: rules instead of a language model, for use without a key and without a network."""
