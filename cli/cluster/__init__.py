"""`twinlog cluster`, `coordinator` and `node`."""
