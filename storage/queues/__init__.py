"""Consume queues, in RocketMQ's files."""
