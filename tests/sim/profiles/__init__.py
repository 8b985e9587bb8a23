"""What a run can be about: groups, delays, timers, deletions; each with its account."""
