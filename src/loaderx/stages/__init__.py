"""What happens to records and batches: user functions, random numbers, stacking and padding."""
