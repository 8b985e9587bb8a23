"""What is wrong here, what differs from the cluster file, and what to send to someone who helps."""
