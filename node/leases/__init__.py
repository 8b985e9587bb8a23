"""Leases of messages, decided: who gets what, what becomes of it, when it is over."""
