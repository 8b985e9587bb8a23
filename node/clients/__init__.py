"""The client port: connections, appends, reads, lookups and commands."""
