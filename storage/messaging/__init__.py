"""What groups have consumed: groups, shares of queues, and the fold of the rows in the log."""
