"""What a block can hold: schemas, values that fit them, their containers in a document, and how they are shown."""
