"""Files behind URLs: stores, and the folder of downloads through which they are read."""
