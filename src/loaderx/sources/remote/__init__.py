"""Files behind URLs: stores, and the folder of downloads."""
