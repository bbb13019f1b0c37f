"""Storage: artifacts, atomic files, leases, and every path on disk."""
