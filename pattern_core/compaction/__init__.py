"""What leaves a prompt when its window is full: chosen, summarised, archived, and never lost."""
