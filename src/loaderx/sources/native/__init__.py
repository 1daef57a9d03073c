"""loaderx's own layout of a dataset on disk: reading, saving, filling."""
