"""Checking a store directory: log, queues, key index, timers and side files against each other."""
