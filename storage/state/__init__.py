"""State derived from the log: topics, producers, sections, and the dispatcher."""
