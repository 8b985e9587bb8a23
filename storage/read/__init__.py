"""Reading the log: by queue offset, by time, by log offset, filtered."""
