"""Files on this machine or behind URLs, and their contents."""
