"""What records look like: some of them, and the facts of a sample."""
