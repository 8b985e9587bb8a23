"""`twinlog dev`: a cluster on this machine."""
