"""Workers that others run: any executor, and Ray, on this machine or on many."""
