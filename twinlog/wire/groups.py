"""What the requests of work queues say besides their types: numbers, row codes, documents.

The fields themselves are in ``twinlog.wire.schema``. All of these requests are for the acting
master (``not-master`` names it); only GROUP ``list`` and ``show`` are answered by slaves, too, with
the age of their data. Every one may be repeated without an answer, to the next master as well: a
POP is known by (member, pop), a row of SETTLE by (share, n, range), a position by its value.

**GROUP** takes ``op`` and, but for ``list``, ``name``:

* ``list``: groups in pages sorted by name, ``after`` the last name of the page before;
* ``show``: one group with its queues and members;
* ``create``, ``alter``: ``settings``, a map with any of ``mode`` (``shared``, ``ordered``,
  ``broadcast``), ``start`` (``end``, ``start`` or a time in ms), ``attempts``, ``retry`` (a list of
  pauses in ms), ``growing`` (first pause, longest, factor) in its place, ``invisible_ms``,
  ``dead_letter``, ``filters`` (topic to filter); what is absent stays as it is;
* ``delete``;
* ``reset``: ``positions``, rows [topic, queue, next]; leases of these queues end; of a broadcast
  group the positions of all members move, and the sessions of those that read the topic end;
* ``skip``: ``positions``, rows [topic, queue, count]: as many messages after the first unsettled
  one are left out. Both answer ``positions``: rows [topic, queue, from, to].

A filter is a text: ``tags: paid || refunded``, or an expression as READ's ``where`` takes it. JOIN
names those that the member counts on in ``filters``; absent: whatever the group has.

**Documents.** A group of ``list`` is a map ``name``, ``mode``, ``topics``, ``members``, ``lag``,
``leased``, ``waiting``, ``oldest_ms`` (store time of the first unsettled message; nil: none).
``show`` gives ``group``: the same and ``settings`` (as `create` takes them), ``queues`` (maps of
``topic``, ``queue``, ``share``, ``low``, ``next``, ``start``, ``end``, ``lag``, ``leased``,
``waiting``, ``runs``) and ``people`` (maps of ``member``, ``name``, ``heard_ms`` ago or nil,
``leased``).

**POP** answers rows [topic, queue, share, n, first, count, attempt, until_ms, records, bytes]: a
lease of the queue offsets ``first`` to ``first + count - 1``; the payload holds the stored records
of all rows in that order. With ``places`` the payload is empty and ``bytes`` 0: the client READs
them. ``until_ms`` is the end of the lease by the master's clock, ``now_ms`` what that clock says
with the answer, ``waited_ms`` how long the POP was parked before the lease was decided: so a
client whose clock differs, or whose process stood still, knows an end that is never too late.

**JOIN** is the first word on each connection: ``member`` 0 asks for a new one, a live one says "I
am back here", one that is over gets another number. **BEAT** with ``leave`` ends a membership;
leases outlive it and end by time: a row of SETTLE is judged by (share, n, range) alone.

**SETTLE** takes rows [share, n, what, first, last, argument] (inclusive; a reason may follow as
text) and answers a row [code, number] each; see `What` and the codes below.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class What(IntEnum):
    """What a row of SETTLE says of its messages, and what its argument means."""

    ACK = 1
    """Handled; the argument is 0."""
    RELEASE = 2
    """Failed: visible again after the argument in ms; -1: after the group's own pause."""
    UNUSED = 3
    """Not handled: visible again after the argument in ms, and the attempt does not count."""
    REJECT = 4
    """Can never be handled: a dead letter now."""
    EXTEND = 5
    """The lease ends the argument in ms from now; the number answered is that time."""


BACK_OFF: Final = -1
"""Argument of `What.RELEASE`: the pause that the group's policy gives this attempt."""

DONE: Final = ""
"""Code of a row that is carried out, or was before."""

RECEIPT_EXPIRED: Final = "receipt-expired"
"""The messages were handed out again, or the group was reset: this lease is over."""

RECEIPT_UNKNOWN: Final = "receipt-unknown"
"""Never leased so: another share, a lease number from the future, a range beyond the lease."""

LEAVING: Final = "leaving"
"""The file of the message is to leave: the lease ends when it would have."""

POSITION_OFFSET: Final = "offset"
"""A position beyond the end or below the present one; the number answered is the present one."""

FENCED: Final = "fenced"
"""The queue belongs to another member or generation."""

MODES: Final = ("shared", "ordered", "broadcast")
"""Modes of groups that this version has."""

ROWS_MAX: Final = 4096
"""Rows in one SETTLE, COMMIT or TOGETHER, of each kind."""

TOPICS_MAX: Final = 64
"""Topics that one JOIN or POP may name."""

LEASES: Final = ("confirmed", "fast")
"""When the answer to a POP leaves: with the confirm of its lease, or with its append."""
