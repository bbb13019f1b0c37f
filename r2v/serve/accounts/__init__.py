"""Accounts of the server: books and caps, traffic log, recorded sessions, counters, explanations."""
