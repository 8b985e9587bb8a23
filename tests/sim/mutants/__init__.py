"""Broken versions of the production code, each of which the simulator must catch."""
