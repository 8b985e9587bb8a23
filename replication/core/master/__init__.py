"""Decisions of a master: its slaves, the in-sync set, the confirm offset. Pure."""
