"""Transport: bodies, headers and replies between client and endpoints, and the HTTP client to the endpoints."""
