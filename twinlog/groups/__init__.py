"""Work queues: members of a group; a pure core with a blocking and an awaiting shell."""
