"""Reading: positions, prefetching, filters; a pure core with a blocking shell."""
