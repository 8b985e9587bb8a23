"""Spark's Python daemon with its imports done: a worker is forked, not imported.

Planning a query of a Python source takes several workers, and each imports Spark's and our modules
anew, which costs more than what it does. Here the parent has imported them. Not among them is what
may start a thread, which a fork would lose: pyarrow, numpy.

Tasks of the sink can be held here, too (`tests.spark.holding`).
"""

from __future__ import annotations

import importlib
import os
import sys
import threading

from tests.spark import holding

MODULES = (
    "pyspark.worker",
    "pyspark.sql.datasource",
    "pyspark.sql.types",
    "pyspark.sql.worker.utils",
    "twinlog.spark",
    "twinlog.spark.source.data_source",
)

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    holding.install(os.environ)
    assert threading.active_count() == 1, "nothing that was imported may have started a thread"
    assert not {"pyarrow", "numpy"} & sys.modules.keys(), "imported by each worker itself"
    importlib.import_module("pyspark.daemon").manager()
