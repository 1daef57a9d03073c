"""Other libraries' words: programs written for them run on loaderx with one import changed."""
