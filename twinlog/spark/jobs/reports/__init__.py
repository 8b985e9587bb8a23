"""Statistics, traces, lag and timelines as tables."""
