"""The sink: rows of a query to topics of a cluster, each once within stated limits.

Not here: reading (`twinlog.spark.source.data_source`).
"""
