"""The client port: connections, appends, reads, questions and orders."""
