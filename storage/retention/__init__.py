"""Deleting old log files: which ones, and in what order."""
