"""The small policy: what it reads, how it is loaded, trained and exported."""
