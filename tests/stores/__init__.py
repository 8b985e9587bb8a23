"""Stores that tests build, damage and compare: one package of builders for all tests."""
