"""How steps become tasks for an engine, and the results of tasks elements."""
