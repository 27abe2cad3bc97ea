"""From bytes to text with lines: one module per format; formats that can hurt are read in a child process."""
