"""The promise of a node: the newest group state and epoch that it is bound to (R13).

``twinlog/promise`` (`storage.marks.two_slots`), fsynced before the answer that promises it. It is
the hard state of replication: a node that forgot it could take part in an epoch that it had left.

Not here: when a node promises (``replication.core``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.disk.packing import number, pack, text, unpack
from storage.marks.two_slots import Slots
from twinlog.errors import CorruptionError

PROMISE = "twinlog/promise"
_SLOT = 32 * 1024
STATE_MAX = 1024 * 1024
"""Largest slot, bytes. A larger state is not kept; epoch, session and revision always are."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The newest group state that a node has seen and is bound to.

    Attributes:
        epoch: The node takes no part in a smaller one.
        session: Its own session in that state.
        register_id: Id of the register.
        revision: Number of the register's change.
        tag: That change's random tag.
        state: The whole group state, as JSON.
    """

    epoch: int = 0
    session: int = 0
    register_id: str = ""
    revision: int = 0
    tag: int = 0
    state: bytes = b""


class PromiseFile:
    """``twinlog/promise``."""

    def __init__(self, disk: Disk) -> None:
        self._slots = Slots(disk, PROMISE, slot_size=_SLOT, most=STATE_MAX)

    def create(self) -> None:
        """Make the file again, without a value."""
        self._slots.create("open.promise.create")

    def load(self) -> Promise:
        """Return the promise; an empty one on a new store.

        The file may have been written by a process that died before its fsync: it is fsynced before
        anything depends on it, or a power failure could undo the promise (mutant volatile_promise).

        Raises:
            CorruptionError: Both slots are damaged though something was written: a node that
                forgot what it promised must not take part.
        """
        data = self._slots.load("open.promise")
        if data is None:
            if self._slots.written("open.promise"):
                raise CorruptionError(f"{PROMISE} is damaged", file=PROMISE, offset=0)
            return Promise()
        self._slots.secure("open.promise.fsync")
        return _promise(unpack(data))

    def write(self, value: Promise, op: str) -> None:
        """Write it durably.

        A group state too large for a slot is left out: epoch, session and revision must be durable
        without it, and the state can be read from the coordinator again.

        Raises:
            DiskError: It is unknown which promise counts until the next `write`.
        """
        fields: dict[str, object] = {name: getattr(value, name) for name in Promise.__slots__}
        payload = pack(fields)
        if not self._slots.fits(payload):
            payload = pack({**fields, "state": b""})
        self._slots.store(payload, op)


def _promise(fields: Mapping[str, object]) -> Promise:
    state = fields.get("state")
    return Promise(
        number(fields, "epoch"),
        number(fields, "session"),
        text(fields, "register_id"),
        number(fields, "revision"),
        number(fields, "tag"),
        state if isinstance(state, bytes) else b"",
    )
