"""`twinlog log` and `twinlog store`: files of a store, without a node."""
