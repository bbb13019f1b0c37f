"""The public library: the classes that `import r2v` offers. Everything else in the package is internal."""
