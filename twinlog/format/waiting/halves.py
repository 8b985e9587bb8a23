r"""Messages of transactions that are not settled: *halves*, as RocketMQ stores them.

A half lies in queue 0 of `HALF_TOPIC`. Its properties say where it goes (`REAL_TOPIC`, `REAL_QID`),
which producers may settle it (`GROUP`) and which transaction it is of (`NAME`). A commit stores a
copy of it, with `COMMITTED` among its system flags and the half's log offset; that it is settled is
said by a record of `OP_TOPIC`, whose body names queue offsets of halves: ``12,15,``.

Pure. Not here: which halves are open (`storage.messaging.halves`), who settles them
(``node.transactions``).

Sources: RocketMQ 5.3 (``TransactionalMessageBridge``, ``EndTransactionProcessor``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinlog.format.waiting.timers import real_text

PREPARED: Final = "TRAN_MSG"
"""Property: ``true``."""
GROUP: Final = "PGROUP"
"""Property: the producers that may settle it."""
NAME: Final = "__transactionId__"
"""Property: the transaction."""
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Property: how long after its birth producers are not asked what became of it."""
CHECKER: Final = "CID_RMQ_SYS_TRANS"
"""RocketMQ's group whose positions say from where on a broker looks at halves and their ends."""
OP_TAG: Final = "d"
"""Tag of a record that says which halves are settled."""

KIND_BITS: Final = 0x0C
COMMITTED: Final = 0x08
"""Of a record's system flags: the bits that say what it is in a transaction."""

IMMUNITY_MAX: Final = 366 * 86_400
"""Seconds of `IMMUNITY`, at most."""
KEEP_MS: Final = 72 * 3_600_000
"""A half that is open for that time is given up, where nothing else is set."""
OPEN_MAX: Final = 100_000
"""Halves that may be open in one store."""
HALVES_MAX: Final = 1_000
"""Messages of one transaction: its end is one batch of the log."""


def half_text(group: str, name: str, topic: str, queue: int) -> bytes:
    r"""Return the properties that make a record a half, as they are stored.

    >>> half_text("shop", "7f", "orders", 3)
    b'TRAN_MSG\x01true\x02PGROUP\x01shop\x02__transactionId__\x017f\x02REAL_TOPIC\x01orders\x02REAL_QID\x013\x02'
    """
    text = f"{PREPARED}\x01true\x02{GROUP}\x01{group}\x02{NAME}\x01{name}\x02"
    return text.encode() + real_text(topic, queue)


def immunity_ms(text: str) -> int:
    """Return what `IMMUNITY` says, ms; -1 where it says nothing, as RocketMQ reads it.

    >>> immunity_ms("12"), immunity_ms(""), immunity_ms("soon"), immunity_ms("-1")
    (12000, -1, -1, -1)
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        return -1
    return min(int(text), IMMUNITY_MAX) * 1000


def op_body(halves: Iterable[int]) -> bytes:
    """Return the body that says that the halves at these queue offsets are settled.

    >>> op_body([12, 15])
    b'12,15,'
    """
    return b"".join(b"%d," % half for half in halves)


def op_numbers(body: bytes) -> list[int]:
    """Return the queue offsets in such a body; what is not a number is left out.

    >>> op_numbers(b"12,15,"), op_numbers(b"7"), op_numbers(b"x,,9")
    ([12, 15], [7], [9])
    """
    return [int(one) for one in body.split(b",") if one.isdigit() and len(one) < 20]
