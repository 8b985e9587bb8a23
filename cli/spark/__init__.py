"""`twinlog spark`."""
