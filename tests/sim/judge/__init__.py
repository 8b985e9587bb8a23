"""The judge: what it knows of logs, disks and clients, past all production code."""
