"""Users of a simulated group: producers, readers, members, an operator."""
