"""Tests through Spark: one local session for all of them."""
