"""Reading a store directory, twinlog's or RocketMQ's, live or copied. Nothing here writes."""
