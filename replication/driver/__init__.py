"""Carries the core's commands out on a store and its connections."""
