"""The wire: frames, and the fields of each message."""
