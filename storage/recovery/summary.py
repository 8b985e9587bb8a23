"""What a start found: reported to the coordinator, the log and people.

Not here: how it was found (`storage.recovery.open`).
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.damage import Damage


@dataclass(frozen=True, slots=True)
class BootSummary:
    """One start of a store.

    Attributes:
        store_id: Made with the data directory; another disk or a copy has another one.
        start_id: Random id of this start.
        unseen: Earlier start ids that the coordinator has not seen, oldest first.
        clean: Nothing that was acknowledged can have been lost with the page cache.
        why_unclean: The reason when it is not, else "".
        new: The data directory was empty.
        found_segments: Log files that were there.
        cut_bytes: Bytes of a torn tail that were cut, as far as entries tell.
        cut_batches: Batches with a valid entry that were cut.
        damage: What was found damaged; the store is then quarantined. None normally.
        intent_replayed: A cut that a crash had interrupted was finished.
        queues_rebuilt: Queue files were missing or changed and were built from the log.
        end: End of the log after recovery.
    """

    store_id: str
    start_id: str
    unseen: tuple[str, ...]
    clean: bool
    why_unclean: str
    new: bool
    found_segments: int
    cut_bytes: int
    cut_batches: int
    damage: Damage | None
    intent_replayed: bool
    queues_rebuilt: bool
    end: int
