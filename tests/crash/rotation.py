"""Which calls a run of the crash tests dies in: all of them, or another part each day.

With ``nothing`` and ``everything`` lost there is one outcome for each call, and every run tries
all. A random part has many outcomes: a run tries one in `PARTS` of the calls, and those of another
day others. ``python -m tests.crash`` tries every call with every kind of loss.
"""

from __future__ import annotations

import time

PARTS = 8


def numbers(calls: int, kind: str, *, first: int = 0, step: int = 1) -> range:
    """Return the numbers of the calls to die in: from ``first`` on in steps, or a part of these."""
    if kind != "some":
        return range(first, calls, step)
    today = int(time.time()) // 86_400 % PARTS
    return range(first + today * step, calls, step * PARTS)
