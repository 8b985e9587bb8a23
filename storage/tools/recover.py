"""Recovery without a node: the recovery of a start, followed by a clean stop.

After it the log ends at a batch border with only zeros after it, queues reach to the confirm
offset, and RocketMQ may open the directory. It changes nothing that a node's own start would not
change, and does not register: any pending condition (an unclean start, damage) is left as it was.

Records beyond the confirm offset stay in the log, because only their group may cut them. They have
no queue entries yet; ``abort`` then stays, with twinlog's line, so that RocketMQ enters them.

Not here: repairing what recovery refuses (`storage.tools.repair`), the command (``cli``).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from storage.disk.disk import Disk, RealDisk
from storage.errors import ForeignStore
from storage.key_index.file import DIRECTORY as INDEX
from storage.log.batch_index import DIRECTORY as BATCHES
from storage.log.log_folders import Folders, multi_folder_disk, noted
from storage.marks.identity import Identity, Who, read_identity
from storage.recovery.open import open_store
from storage.recovery.snapshot import Snapshots
from storage.recovery.summary import BootSummary
from storage.settings import INDEX_CELLS_MAX, StoreSettings
from storage.store import Store
from twinlog.errors import CorruptionError
from twinlog.format.key_index import (
    CELLS_PER_SLOT,
    INDEX_CELLS_DEFAULT,
    INDEX_SLOTS_DEFAULT,
    slots_for,
)
from twinlog.store.files import log_folders, store_root

_OFFSET_MAX = (1 << 63) - 1
_HOSTS = {4: ("127.0.0.1", 0), 6: ("::1", 0)}


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        boot: The summary of the start.
        end: End of the log.
        confirm: Confirm offset; the group may still cut records beyond it.
        clean: The store was stopped cleanly; false with damage.
    """

    boot: BootSummary
    end: int
    confirm: int
    clean: bool


def settings_of(identity: Identity, capacity: tuple[int, int] | None = None) -> StoreSettings:
    """Return settings that fit the store of ``identity``; for tools, not for a node.

    Args:
        identity: The store's identity.
        capacity: Slots and cells of a new key index file (`index_capacity`); None for RocketMQ's
            defaults.
    """
    slots, cells = capacity or (INDEX_SLOTS_DEFAULT, INDEX_CELLS_DEFAULT)
    return StoreSettings(
        segment_size=identity.segment_size,
        queue_segment_entries=identity.queue_file_size // 20,
        store_host=_HOSTS[identity.who.family],
        index_slots=slots,
        index_cells=cells,
    )


def index_capacity(disk: Disk) -> tuple[int, int] | None:
    """Return slots and cells of the newest key index file; None if unknown.

    They are in the newest snapshot, else follow from the file's length if there are four cells per
    slot. Files that tools add must have the same: a broker configured for them finds no keys in
    other files.
    """
    known = Snapshots(disk).newest(_OFFSET_MAX)
    if known is not None and known.index is not None and known.index.files:
        newest = known.index.files[-1]
        return newest.slots, newest.cells
    for name in reversed(disk.list(INDEX)):
        if name.isdigit():
            slots = slots_for(disk.size(f"{INDEX}/{name}"))
            if 1 <= slots <= INDEX_CELLS_MAX // CELLS_PER_SLOT:
                return slots, CELLS_PER_SLOT * slots
    return None


def identity_of(disk: Disk) -> Identity:
    """Return the identity of a twinlog store.

    Raises:
        ForeignStore: It is not a twinlog store.
        NewerVersion, CorruptionError: Its identity cannot be read.
    """
    found = read_identity(disk)
    if found is None:
        if disk.exists(BATCHES):
            raise _missing("identity")
        raise ForeignStore(
            "this directory is not a twinlog store",
            hint="repair a RocketMQ store with twinlog log repair",
            code="not-ours",
        )
    return found


def require_marks(disk: Disk) -> Identity:
    """Return the identity of a twinlog store that has the small files which a start needs.

    Raises:
        ForeignStore: It is not a twinlog store.
        NewerVersion, CorruptionError: One is missing, or the identity cannot be read.
    """
    found = identity_of(disk)
    for name in ("run", "checkpoint"):
        if not disk.exists(f"twinlog/{name}"):
            raise _missing(name)
    return found


def _missing(name: str) -> CorruptionError:
    return CorruptionError(
        f"twinlog/{name} is missing, and a node cannot start without it; nothing was changed",
        hint="let the node begin again from its group in an empty directory, or go on outside the "
        "group with what the log holds: twinlog store adopt",
        file=f"twinlog/{name}",
    )


def disk_at(path: Path) -> Disk:
    """Return the disk of a store for tools: log files are in the recorded and in the named folders.

    Args:
        path: The data directory; more folders may follow after commas, see
            `twinlog.store.files.store_root`.

    Raises:
        UsageError: A folder is missing.
    """
    root = store_root(path)
    more = [str(folder.absolute()) for folder in log_folders(path)[1:]]
    known = noted(RealDisk(root))
    held = {str((root / folder).absolute()) for folder in known}
    new = tuple(folder for folder in more if folder not in held)
    return multi_folder_disk(RealDisk(root), Folders((*known, *new), adopted=True))


def opened_by_tool(disk: Disk, settings: StoreSettings, who: Who, *, wall_ms: int) -> Store:
    """Open a store as `Store.open` does, one that was handed over to RocketMQ as well."""
    opened = open_store(disk, settings, who, guard=threading.Lock(), wall_ms=wall_ms)
    return Store(opened, who)


def recover(disk: Disk, *, wall_ms: int) -> Recovered:
    """Recover the store in ``disk`` and stop it cleanly.

    Raises:
        DirectoryInUse: A node uses it; nothing was changed.
        ForeignStore: It is not a twinlog store, or another program changed it; nothing was changed.
        CorruptionError: A small file that a start needs is missing; nothing was changed.
        DiskError: The stop is not clean; the call can be repeated.
    """
    identity = require_marks(disk)
    settings = settings_of(identity, index_capacity(disk))
    store = opened_by_tool(disk, settings, identity.who, wall_ms=wall_ms)
    clean = store.damage is None
    end, confirm = store.end, store.confirm
    store.close(clean=clean)
    return Recovered(store.boot, end, confirm, clean and store.damage is None)
