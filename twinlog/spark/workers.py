"""What a Python worker of Spark is told once, so that its tasks cost less.

Spark's worker collects garbage in full after each task, and with the modules of Spark, pyarrow and
ours in memory that looks at some hundred thousand objects which will be there until it ends: a
tenth of the CPU of reading, and a third of planning. So what is there when the first task has
imported everything is put aside. It is still freed when nothing refers to it any more; only cycles
among it would stay, once for a worker.

Not here: what a task does (`twinlog.spark.source`).
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Put aside what is in memory, as never to be collected; again, and nothing happens.

    Only for a process of Spark's that runs tasks: in one that is the user's own, cycles are his.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.freeze()
