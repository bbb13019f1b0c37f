"""Storage: artifacts, atomic files, leases, and the one owner of every place on disk."""
