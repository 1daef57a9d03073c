"""Arrow files, and datasets that Hugging Face keeps in them."""
