"""Reading results back: `from r2v.utils.results import ResultsManager`."""
