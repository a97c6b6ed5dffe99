"""The pool: the process that keeps several workers alive, and looks after what they leave."""
