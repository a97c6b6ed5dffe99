"""One module or folder per backend; none of them imports another."""
