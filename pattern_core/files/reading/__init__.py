"""From bytes to text with lines: one reader per format; formats that can hurt are read in a child process."""
