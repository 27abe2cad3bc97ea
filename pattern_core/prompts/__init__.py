"""What a model is shown: collected, ranked, kept within a budget, put into order, and noted."""
