"""The server's side of federated learning: Algorithm 1, what it needs, and what it records."""
