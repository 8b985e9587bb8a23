"""Rebuild consume queues and key index from the log."""
