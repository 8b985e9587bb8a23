"""Starting, stopping and cutting a store."""
