"""Nodes that serve a raw log: what `tests.fakes.node` lacks for archives and jobs.

`RawNode` is a fault of a fake node that answers LOG, and STATUS and ADMIN as far as an archive uses
them, from bytes held in memory. A test moves its borders, flips its bytes, stops it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fakes.node import Arrived, Drop, FakeCluster
from tests.stores.sample import SEGMENT, Ours
from twinlog.format.batch_index import BatchEntry
from twinlog.wire.frames import Type


@dataclass
class RawNode:
    """One node's log.

    Attributes:
        name: Of the node.
        log: Its bytes, whole files.
        entries: Its batch index.
        start: First log offset it keeps.
        confirm: What it has confirmed.
        mark: What it has been told that an archive has.
        archive: Id of that archive.
        gone: Drops every connection.
        asked: Log offsets of the LOGs it answered with bytes.
        before: Called with each LOG before it is answered.
    """

    name: str
    log: bytearray
    entries: list[BatchEntry]
    confirm: int
    start: int = 0
    mark: int = 0
    archive: str = ""
    gone: bool = False
    piece: int = 3000
    asked: list[int] = field(default_factory=list[int])
    before: Callable[[int], None] = lambda offset: None

    def __call__(self, arrived: Arrived) -> bool:
        """Answer what is ours."""
        if self.gone:
            raise Drop
        match arrived.frame.type:
            case Type.LOG:
                self._log(arrived)
            case Type.STATUS:
                offsets = {"start": self.start, "confirm": self.confirm}
                known = {"archived": self.mark, "archive": self.archive}
                arrived.answer({"offsets": offsets, "retention": known})
            case Type.ADMIN:
                self._archived(arrived)
            case _:
                return False
        return True

    def _log(self, arrived: Arrived) -> None:
        at, size = arrived.frame.fields["offset"], arrived.frame.fields["max_bytes"]
        assert isinstance(at, int) and isinstance(size, int)
        self.before(at)
        if self.gone:
            raise Drop
        held = self.start <= at < self.confirm
        end = min(at + min(size, self.piece), at - at % SEGMENT + SEGMENT, self.confirm)
        end = end if held else at
        known = b"".join(e.pack() for e in self.entries if at <= e.start < end)
        if end - at > 1:
            self.asked.append(at)
        fields: dict[str, object] = {
            "status": "found" if held else "before-start" if at < self.start else "above-confirm",
            "next": end, "entries": known, "start": self.start, "confirm": self.confirm,
            "segment_size": SEGMENT, "node": self.name, "role": "slave",
        }  # fmt: skip
        arrived.answer(fields, bytes(self.log[at:end]))

    def _archived(self, arrived: Arrived) -> None:
        rows = arrived.frame.fields["parts"]
        assert isinstance(rows, list)
        other = arrived.frame.fields["archive"] != self.archive
        if other and self.mark and not arrived.frame.fields["replace"]:
            arrived.refuse("archive", "this is another archive")
            return
        mark = 0 if other else self.mark
        for start, end, digest in rows:
            if start > max(mark, self.start):
                arrived.refuse("archive", f"the archive has nothing of {mark}..{start}")
                return
            if hashlib.sha256(self.log[start:end]).hexdigest() != digest:
                arrived.refuse("archive", f"{start}..{end} differs")
                return
            self.mark = mark = end
            self.archive = str(arrived.frame.fields["archive"])
        arrived.answer({"archived": self.mark})


def raw_nodes(cluster: FakeCluster, made: Ours, *names: str) -> dict[str, RawNode]:
    """Add nodes to a cluster, all with the same log, confirmed to its end."""
    size = -(-len(made.log) // SEGMENT) * SEGMENT
    found: dict[str, RawNode] = {}
    cluster.epochs = list(
        {e.epoch: [e.epoch, e.start] for e in reversed(made.entries) if e.count}.values()
    )[::-1]
    for name in names:
        log = bytearray(bytes(made.log).ljust(size, b"\0"))
        found[name] = RawNode(name, log, list(made.entries), made.end)
        cluster.add_node(name).faults.append(found[name])
    return found
