"""What the hot paths cost, in figures that no other work on the machine changes."""
