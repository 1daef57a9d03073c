"""The cache folder: files that loaderx has unpacked, copied or indexed once."""
