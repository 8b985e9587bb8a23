"""twinlog."""
