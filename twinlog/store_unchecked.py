"""What lies in a store directory and is not judged by `store_check.verify`, with the reason.

So nobody takes silence for a verdict. Folders of several files are named once. Files that say
nothing but that they are there (``abort``, ``lock``) are left out.

Not here: the checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from twinlog.store_config import is_config
from twinlog.store_ext_check import FOLDER as EXTENSION
from twinlog.store_ext_check import UNJUDGED as BITMAPS
from twinlog.store_files import listed
from twinlog.store_reader import StoreReader
from twinlog.store_timer_check import CHECK
from twinlog.store_timer_check import UNJUDGED as DELIVERED
from twinlog.store_topics import queues_in_database

_ANEW = "a start makes it anew"
_ASIDE = "what was cut or replaced"
_FOREIGN = "not known as part of a store"
_ROCKETMQS = "only RocketMQ uses it"
_PLAIN = frozenset(
    {
        "abort", "abort.bak", "batchconsumequeue", "commitlog", "config", "consumequeue",
        "epochFileCheckpoint", "epochFileCheckpoint.bak", "index", "lock", "twinlog",
    }
)  # fmt: skip
"""Judged, or nothing to judge, in stores of both kinds."""
_OF_ROCKETMQ = {
    "brokerIdentity": "it is not part of the log",
    "checkpoint": "it says only how far back a start looks",
    "cut": _ASIDE,
    "kvStore": "a database of RocketMQ's",
}
_OF_OURS = {
    "checkpoint": _ANEW,
    "compaction": _ROCKETMQS,
    "config": _ANEW,
    "consumequeue_ext": _ROCKETMQS,
    "cut": _ASIDE,
    "epochFileCheckpoint": _ANEW,
    "epochFileCheckpoint.bak": _ANEW,
    "timerlog": _ROCKETMQS,
    "timerwheel": _ROCKETMQS,
    "twinlog/state": _ANEW,
}
_LOOKED_AT = frozenset({"compaction", EXTENSION, "timerlog", "timerwheel"})
"""Judged in RocketMQ's stores."""


def unchecked(store: StoreReader) -> Iterator[tuple[str, str]]:
    """Yield (path, why it was not judged), by path."""
    reasons = _OF_OURS if store.ours else _OF_ROCKETMQ
    plain = _PLAIN if store.ours else _PLAIN | _LOOKED_AT
    folders = {path.name for path in store.log_folders}
    for path, _, _ in listed(store.root):
        if reason := reasons.get(path.name):
            yield path.name, reason
        elif path.name not in plain and path.name not in folders:
            yield path.name, _FOREIGN
    database = not store.ours and queues_in_database(store.root)
    if database:
        yield "consumequeue", "a database of RocketMQ's; its entries are not compared with the log"
    for folder in ("consumequeue", "batchconsumequeue"):
        for path, _, why in listed(store.root / folder):
            if why != "a folder" and not (database and folder == "consumequeue"):
                yield f"{folder}/{path.name}", _FOREIGN
    if store.ours:
        if (store.root / "twinlog" / "state").is_dir():
            yield "twinlog/state", reasons["twinlog/state"]
        return
    for path, _, why in listed(store.root / "config"):
        if why == "a folder":
            yield f"config/{path.name}", "a database of RocketMQ's"
        elif not is_config(path.name):
            yield f"config/{path.name}", _FOREIGN
    if (store.root / CHECK).is_file():
        yield CHECK, DELIVERED
    if (store.root / EXTENSION).is_dir():
        yield EXTENSION, BITMAPS
