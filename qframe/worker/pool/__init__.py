"""The pool: the process that keeps several workers alive, and cleans up after them."""
