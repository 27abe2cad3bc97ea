"""A model on this machine, in a separate process.

Loading PyTorch blocks the interpreter for up to 230 ms at a time and uses some 450 MB that a process never releases; in
a child neither affects the server, a crash of native code ends only the child, and idle memory is returned.

`vocabulary.txt` is the vocabulary of BERT (uncased) as published with sentence-transformers/all-MiniLM-L6-v2, revision
1110a243fdf4706b3f48f1d95db1a4f5529b4d41, under the Apache License 2.0; sha256 in `models.py`.
"""
