"""RocketMQ's key index: building, sealing, searching."""
