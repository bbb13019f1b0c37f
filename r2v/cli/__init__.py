"""The command line: every word of `r2v`, a module per family of commands."""
