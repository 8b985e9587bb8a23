"""`twinlog cluster`, `coordinator`, `node` and `topic`."""
