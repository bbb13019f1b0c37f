"""Tables of an evaluation: rows, files, LaTeX."""
