"""What the world knows of every log: the judge's memory.

A simulator sees everything. The ledger keeps, per node, the batches of its log as they were when
the node last did something (a *shadow*), and one *canon*: the batches below the largest confirm
offset that any master ever reached. Every batch is one object, interned by (epoch, start), so that
comparing two histories is comparing identities and each step costs no more than what it changed.

Interning is also the check of log matching: two stores that hold a batch of one epoch at one
offset must agree on its length, its checksum, and on the batch before it, and therefore, by
induction, on everything before it.

Invariants: `Shadow.batches` is contiguous from 0; `Shadow.matched` is the number of leading batches
it shares with the canon; the canon only grows.

Not here: what follows from all this (`tests.sim.invariants`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from twinlog.format.batch_index import BatchEntry


class Violation(Exception):
    """An invariant does not hold. No AssertionError: production code would take it for its own.

    Attributes:
        name: The invariant's name, as in docs and reports.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Batch:
    """One batch as every store must hold it; compared by identity.

    Attributes:
        holders: Nodes that have had it, whatever became of it there.
    """

    __slots__ = ("count", "crc", "end", "epoch", "holders", "kind", "length", "previous", "start")

    def __init__(self, entry: BatchEntry, previous: Batch | None) -> None:
        self.start = entry.start
        self.length = entry.length
        self.end = entry.start + entry.length
        self.count = entry.count
        self.epoch = entry.epoch
        self.crc = entry.crc
        self.kind = entry.kind
        self.previous = previous
        self.holders: set[str] = set()

    def __repr__(self) -> str:
        return f"[{self.start}+{self.length} e{self.epoch} k{self.kind} {self.crc:08x}]"


@dataclass(slots=True)
class Shadow:
    """One store's log, as last seen.

    Attributes:
        name: The node.
        batches: Its batches from offset 0.
        end: Log end, bytes.
        matched: Leading batches shared with the canon.
        confirm: The store's confirm offset, as last seen.
        confirm_floor: The largest confirm offset ever seen on this store.
        flushed: The store's flushed offset, as last seen.
        acked: The largest end that it acknowledged (by the quality in force) or confirmed.
        was_intact: `intact` before the last loss of power.
        intact: False from a loss of bytes that had been counted on until the next registration.
    """

    name: str
    batches: list[Batch] = field(default_factory=list)
    end: int = 0
    matched: int = 0
    confirm: int = 0
    confirm_floor: int = 0
    flushed: int = 0
    acked: int = 0
    intact: bool = True
    was_intact: bool = True

    def count_up_to(self, offset: int) -> int:
        """Number of batches that end at or below ``offset``."""
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        return low


class Ledger:
    """All shadows and the canon.

    Attributes:
        canon: Confirmed batches, in order.
        shadows: Shadow per node.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.shadows: dict[str, Shadow] = {name: Shadow(name) for name in names}
        self.canon: list[Batch] = []
        self.canon_end = 0
        self._known: dict[tuple[int, int], Batch] = {}

    def intern(self, entry: BatchEntry, previous: Batch | None) -> Batch:
        """Return the one object for this batch.

        Raises:
            Violation: Another store holds something else there.
        """
        key = (entry.epoch, entry.start)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Batch(entry, previous)
            return known
        if known.length != entry.length or known.crc != entry.crc or known.count != entry.count:
            raise Violation(
                "BatchesEqual", f"{known} elsewhere, here length {entry.length} crc {entry.crc:08x}"
            )
        if known.previous is not previous:
            raise Violation(
                "PrefixAgreement", f"{known} follows {known.previous} elsewhere, here {previous}"
            )
        return known

    def grow(self, shadow: Shadow, entries: Iterable[BatchEntry]) -> list[Batch]:
        """Append what a store appended; returns the new batches."""
        batches = shadow.batches
        previous = batches[-1] if batches else None
        grown: list[Batch] = []
        end = shadow.end
        for entry in entries:
            if entry.start != end:
                raise Violation(
                    "EveryByteHasEntry", f"{shadow.name}: entry at {entry.start}, expected {end}"
                )
            previous = self.intern(entry, previous)
            end = previous.end
            previous.holders.add(shadow.name)
            grown.append(previous)
        batches.extend(grown)
        shadow.end = end
        self.match(shadow)
        return grown

    def held_elsewhere(self, shadow: Shadow, end: int) -> bool:
        """Whether another node has had, at some time, what this one holds below ``end``."""
        at = shadow.count_up_to(end - 1)
        return bool(shadow.batches[at].holders - {shadow.name})

    def cut(self, shadow: Shadow, end: int) -> None:
        """Drop what a store cut.

        Raises:
            Violation: The new end is no batch border.
        """
        count = shadow.count_up_to(end)
        del shadow.batches[count:]
        shadow.end = shadow.batches[-1].end if count else 0
        if shadow.end != end:
            raise Violation("EveryByteHasEntry", f"{shadow.name}: cut to {end}, inside a batch")
        shadow.matched = min(shadow.matched, count)

    def begin_again(self, shadow: Shadow, start: int) -> None:
        """A store deleted its log; from ``start`` on it stands for the confirmed log before it.

        Raises:
            Violation: ``start`` is not confirmed, or no batch border.
        """
        count = next((n for n, one in enumerate(self.canon) if one.end > start), len(self.canon))
        shadow.batches = self.canon[:count]
        for batch in shadow.batches:
            batch.holders.add(shadow.name)  # as good as held: it was confirmed and is kept nowhere
        shadow.end = shadow.flushed = shadow.confirm = start
        shadow.confirm_floor = max(shadow.confirm_floor, start)
        shadow.matched = count
        if not shadow.batches or shadow.batches[-1].end != start:
            raise Violation("ConfirmedStays", f"{shadow.name} begins again at {start}")

    def match(self, shadow: Shadow) -> None:
        """Move ``matched`` as far as it goes."""
        at, batches, canon = shadow.matched, shadow.batches, self.canon
        limit = min(len(batches), len(canon))
        while at < limit and batches[at] is canon[at]:
            at += 1
        shadow.matched = at

    def holds_canon(self, shadow: Shadow) -> bool:
        """True when the store holds every confirmed batch."""
        self.match(shadow)
        return shadow.matched == len(self.canon)

    def confirm(self, shadow: Shadow, confirm: int) -> list[Batch]:
        """A master confirmed up to ``confirm``; returns the batches the canon gained.

        Raises:
            Violation: It confirmed something other than what was confirmed before, or no border.
        """
        count = shadow.count_up_to(confirm)
        if count and shadow.batches[count - 1].end != confirm:
            raise Violation("ConfirmIsBorder", f"{shadow.name}: {confirm} is inside a batch")
        if confirm > shadow.end:
            raise Violation(
                "ConfirmBehindEnd", f"{shadow.name}: confirm {confirm}, end {shadow.end}"
            )
        self.match(shadow)
        if shadow.matched < min(count, len(self.canon)):
            raise Violation(
                "ConfirmedStays",
                f"{shadow.name} confirms {shadow.batches[shadow.matched]} where"
                f" {self.canon[shadow.matched]} was confirmed",
            )
        gained = shadow.batches[len(self.canon) : count]
        if gained:
            self.canon.extend(gained)
            self.canon_end = confirm
            shadow.matched = len(self.canon)
        return gained
