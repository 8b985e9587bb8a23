"""What bytes mean: records, files, messages. Pure codecs, shared by client, nodes, offline tools
and Spark."""
