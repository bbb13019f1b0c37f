"""Plans, made before anything is run: which jobs there are to do, what they play and ask, and what that costs."""
