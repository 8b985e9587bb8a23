"""`twinlog drill`: rehearsed failures with a verdict."""
