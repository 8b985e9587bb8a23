"""Settings that a Python worker of Spark makes once, so that its tasks cost less.

Spark's worker collects garbage in full after each task, and with the modules of Spark, pyarrow and
ours in memory that looks at some hundred thousand objects which will be there until it ends: a
tenth of the CPU of reading, and a third of planning. So what is there when the first task has
imported everything is put aside. It is still freed when nothing refers to it any more; only cycles
among it would stay, once for a worker.

The C library gives memory back to the system as soon as a few MiB at the end of its heap are free.
A task frees the columns of each batch before it makes those of the next, so it would get the same
pages again, cleared, one fault for thirty records: up to `KEPT` stays with the worker.

Not here: what a task does (`twinlog.spark.source.data_source`).
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

from twinlog.units import MiB

KEPT: Final = 64 * MiB
"""Free memory at the end of the heap that a worker keeps, bytes; several batches have room."""
MAPPED: Final = 32 * MiB
"""What is asked for in one piece of this size or more is mapped, and given back when it is freed:
the largest that the C library allows."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

_settled = False


def settle() -> None:
    """Put aside what is in memory, as never to be collected, and keep freed memory for later.

    Called again, it does nothing. A C library without ``mallopt`` continues as it is.

    Only for a Spark process that runs tasks: in a user's own process, cycles must be collected.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.freeze()
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, MAPPED)
            mallopt(_M_TRIM_THRESHOLD, KEPT)
