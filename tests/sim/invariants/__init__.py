"""What must never happen, each with a name; the court asks all of it."""
