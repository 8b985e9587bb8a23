"""twinlog as a data source of Spark: ``format("twinlog")``.

    from twinlog.spark import register
    register(spark)
    df = spark.read.format("twinlog").load("/srv/store")

The extra ``twinlog[spark]`` brings PySpark, pyarrow and numpy; nothing else of the package imports
them, and importing this costs nothing.

Here: the source (`source`, `batch`), what it stands on (`options`, `columns`, `planning`,
`directory`, `reading`, `decoding`), and sessions (`sessions`). See docs/spark/.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make ``format("twinlog")`` known to a session; the sure way where discovery is in trouble."""
    from twinlog.spark.source.data_source import Source

    spark.dataSource.register(Source)
