"""Sockets: framed streams and readiness, for slaves, clients and the coordinator."""
