"""Executes the core's commands on a store and its links."""
