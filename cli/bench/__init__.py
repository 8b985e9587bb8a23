"""`twinlog bench`."""
