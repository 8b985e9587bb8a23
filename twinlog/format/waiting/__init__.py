"""What waits in the log to be delivered later: how RocketMQ stores it."""
