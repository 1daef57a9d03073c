"""How steps become tasks for an engine, and results become elements."""
