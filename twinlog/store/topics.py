"""What a RocketMQ store says about queues that have no files here: where they are, or why not.

* With ``storeType=defaultRocksDB`` the folder ``consumequeue`` is a database: no queue has files.
* A topic that an administrator deleted has lost its queue files and its row in ``topics.json``;
  its records stay in the log until retention takes them.

Records of either have no entry in a file, and nothing is wrong with that.

Not here: judging entries (`twinlog.store.verify.queues`), reading the database.

Sources: RocketMQ 5.3 (``RocksDBMessageStore``, ``DefaultMessageStore.deleteTopics``).
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from twinlog.errors import CorruptionError
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.store.reader import StoreReader

QUEUES = "consumequeue"
_TABLES = ("config/topics", "config/rdb")
"""Databases that hold the topics of some brokers; their ``topics.json`` is old then."""


def queues_in_database(root: Path) -> bool:
    """Whether the queues of a store are in RocksDB, which names its newest state in ``CURRENT``."""
    return (root / QUEUES / "CURRENT").is_file()


class Deleted:
    """Which topics were deleted, as far as ``topics.json`` says so.

    Args:
        store: The directory.
    """

    def __init__(self, store: StoreReader) -> None:
        self._root = store.root
        self._known = None if store.ours else _known(store)

    def has(self, topic: str) -> bool:
        """Whether a topic has neither a row nor a folder of queues, and others have rows."""
        if self._known is None or topic.startswith(LIGHT_PREFIX) or topic in self._known:
            return False
        folders = (QUEUES, "batchconsumequeue")
        return not any((self._root / folder / topic).exists() for folder in folders)


def _known(store: StoreReader) -> set[str] | None:
    """Return the topics that ``topics.json`` has; None when it says nothing."""
    if any((store.root / table).is_dir() for table in _TABLES):
        return None
    try:
        table = store.config().get("topics.json", {}).get("topicConfigTable")
    except CorruptionError:
        return None
    return set(cast("dict[str, object]", table)) if isinstance(table, dict) and table else None
