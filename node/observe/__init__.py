"""Observability of a node: status, metrics, logs, HTTP."""
