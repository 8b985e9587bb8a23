"""Writing the log: a master's appends, a slave's received batches."""
