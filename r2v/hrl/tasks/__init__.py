"""Tasks: problems, the prompts that pose them, and the checkers that score answers."""
