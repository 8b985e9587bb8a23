"""Decisions of a replica. Pure: events and the time in, commands out."""
