"""Where Spark looks for data sources: every top-level module named ``pyspark_*``.

One that cannot be imported hides all others, so this imports nothing that can be missing but
PySpark itself, which is what imports it.
"""

from twinlog.spark.source.data_source import Source as DefaultSource

__all__ = ["DefaultSource"]
