"""Golden dialogues of replication, and the small world they and the unit tests run in."""
