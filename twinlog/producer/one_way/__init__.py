"""Messages that are sent without waiting for an answer: counted, and told at a flush."""
