"""Transactions that nothing has ended: what is open, and how an operator ends it."""
