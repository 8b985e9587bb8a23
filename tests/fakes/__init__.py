"""Stand-ins for what the world gives a node: the disk.

Each passes the same conformance suite as the real thing (`tests/conformance`), so that what the
simulator proves about the production code does not rest on a fake that is kinder than Linux.
"""
