"""The file formats that `Dataset.open` reads, one file each; `opening` has the list of them."""
