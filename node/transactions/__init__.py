"""Transactions: their ends, and those that are given up, on the acting master."""
