"""Files on this machine, or behind a URL, and what lies in them."""
