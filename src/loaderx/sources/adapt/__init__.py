"""What a user has in memory, as sources: arrays, frames, lists, objects with an index."""
