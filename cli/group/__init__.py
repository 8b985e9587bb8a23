"""``twinlog group`` and ``dlq``: work queues, who handles them, and what was given up."""
