"""Reports: the results of an evaluation as a page."""
