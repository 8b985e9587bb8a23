"""Which node leads, and one connection to a node: routing, greeting, retries."""
