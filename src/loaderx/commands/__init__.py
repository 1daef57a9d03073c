"""What the command ``loaderx`` does, one file for each of its commands."""
