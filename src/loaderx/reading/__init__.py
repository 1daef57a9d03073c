"""How elements are read: rows, operators, units and readers.  The stages are made of these."""
