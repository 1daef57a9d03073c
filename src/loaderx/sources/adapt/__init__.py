"""Sources for objects in memory: arrays, frames, lists, objects with an index."""
