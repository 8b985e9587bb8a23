"""`twinlog demo`."""
