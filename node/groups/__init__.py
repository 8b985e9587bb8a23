"""Work queues of a master: who gets what, what becomes of it, who is a member."""
