"""Files on disk: how they are found, mapped, indexed, and kept in the cache folder."""
