"""Crashes at every disk operation, damage of every kind; and the workbench of all storage tests."""
