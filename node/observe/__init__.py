"""What a node says about itself: status, metrics, logs, HTTP."""
