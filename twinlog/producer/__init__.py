"""Sending: sections, sequence numbers, retries; a pure core with a blocking and an awaiting
shell."""
