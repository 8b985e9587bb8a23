"""Jobs over whole stores: verify, rebuild, compare, archive, restore, compact, replay, reports.

A job is a function of an `Engine` and a settings object that returns a `Report`. It cuts its work
into items, spreads a plain function over them and puts the results together; the function and the
putting together know nothing of Spark, so `PlainEngine` runs the same job in one process.

Bytes of the log never pass through the JVM: tasks read and write files themselves, and only small
results come back. Only the reports that are SQL by nature use DataFrames
(`twinlog.spark.jobs.reports.tables`).

Not here: the command line (``cli.spark.jobs``), the source and the sink of ``format("twinlog")``.
"""
