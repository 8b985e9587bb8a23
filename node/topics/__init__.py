"""What a topic allows: orders that alter it, and quotas of what is sent to it."""
