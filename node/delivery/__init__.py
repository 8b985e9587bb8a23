"""Delivers what waits, on the acting master: for a delay level, or for a time."""
