"""Verify stores and nodes, and compare them."""
