"""The archive tier: sealed parts of a log as Parquet files, proven before they count.

    DIRECTORY/_twinlog/manifest-00000000000000000042.json     one per commit; the newest counts
    DIRECTORY/_twinlog/runs/<run>/beat                        the lease of a run at work
    DIRECTORY/_twinlog/batches/<group>-<base>-<attempt>       batch index of a twinlog segment
    DIRECTORY/data/topic=orders/date=2026-11-21/part-<group>-<base>-<attempt>.parquet
    DIRECTORY/keys/part-<group>-<base>-<attempt>.parquet      keys of a segment, sorted

Readers see a file only if the newest manifest names it. Writers give files unique names and
commit by creating the next manifest, which only one of two writers can do.

Not here: when a node may delete archived files (``storage.retention.policy``).
"""
