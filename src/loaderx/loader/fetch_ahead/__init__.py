"""Records behind URLs, fetched ahead of the stream."""
