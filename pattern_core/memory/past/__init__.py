"""What blocks were: recorded changes, checkpoints, undo, blame, and what to do about damage."""
