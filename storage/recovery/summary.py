"""The result of a start: reported to the coordinator, the logs and people.

Not here: the start itself (`storage.recovery.open`).
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
        clean: No acknowledged record can have been lost with the page cache.
        why_unclean: The reason if it is not clean, else "".
        new: The data directory was empty.
        found_segments: Log files that were found.
        cut_bytes: Bytes of a torn tail that were cut, according to its entries.
        cut_batches: Batches with a valid entry that were cut.
        damage: Damage that was found; the store is then quarantined. None normally.
        intent_replayed: A cut or a reseed that a crash had interrupted was finished.
        queues_rebuilt: Queue files were missing or changed and were rebuilt from the log.
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
