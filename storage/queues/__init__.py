"""Consume queues: what RocketMQ reads."""
