r"""RocketMQ's files below ``config``: JSON in its own dialect, read only.

RocketMQ writes them with fastjson, which leaves whole numbers without quotes as names of fields
(``{0:33}``); here such names come back as texts. Each file has a ``.bak`` beside it, the version
before: it is used where the file itself is missing, empty or no JSON, as RocketMQ does.

Our own nodes write topics and consumer offsets in the same shapes, for RocketMQ to find.

Not here: what the fields mean.

>>> parse('{"offsetTable":{"t@g":{0:33,1:7}}, "text":"{1:2}"}')
{'offsetTable': {'t@g': {'0': 33, '1': 7}}, 'text': '{1:2}'}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from twinlog.errors import CorruptionError
from twinlog.store.files import small_file

DIRECTORY = "config"
TIMER_CHECK = "timercheck"
"""The one binary file among them; see `twinlog.store.timers`."""

_OTHERS = frozenset({TIMER_CHECK, "timermetrics", "transactionMetrics"})
_BARE = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)')


def parse(text: str) -> dict[str, object]:
    """Return the object that ``text`` holds, whole-number names as texts.

    Raises:
        CorruptionError: It is no JSON object.
    """
    quoted = _BARE.sub(_quote, text)
    try:
        found = json.loads(quoted)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptionError("the file is not a JSON object")
    return cast("dict[str, object]", found)


def _quote(match: re.Match[str]) -> str:
    if match[2] is None:
        return match[0]
    return f'{match[1]}"{match[2]}"{match[3]}'


def is_config(name: str) -> bool:
    """Whether a file of that name below ``config`` is one that RocketMQ reads, or its backup.

    >>> [is_config(name) for name in ("topics.json.bak", "timermetrics", "topics.json.tmp")]
    [True, True, False]
    """
    plain = name.removesuffix(".bak")
    return plain.endswith(".json") or plain in _OTHERS


def read_config(root: Path) -> Mapping[str, dict[str, object]]:
    """Return every config file of the store at ``root`` by its name.

    What RocketMQ would not read is left out where it is no JSON: notes, half a file of an editor's.

    Raises:
        CorruptionError: A file and its backup can both not be read as JSON; names the file.
    """
    folder = root / DIRECTORY
    names = {path.name.removesuffix(".bak") for path in folder.glob("*")} if folder.is_dir() else ()
    found = {name: _read(folder, name) for name in sorted(names) if name != TIMER_CHECK}
    return {name: value for name, value in found.items() if value is not None}


def _read(folder: Path, name: str) -> dict[str, object] | None:
    damaged: list[CorruptionError] = []
    for path in (folder / name, folder / f"{name}.bak"):
        try:
            data = small_file(path)
            if not data.strip():
                continue
            return parse(data.decode("utf-8"))
        except (CorruptionError, UnicodeDecodeError) as error:
            file = f"{DIRECTORY}/{path.name}"
            text = f"{file} is damaged: {error}"
            damaged.append(CorruptionError(text, file=file, offset=0))
    if damaged and is_config(name):
        raise damaged[0]
    return None


def topic_queues(config: Mapping[str, dict[str, object]]) -> dict[str, int]:
    """Return the topics of ``topics.json`` with how many queues they are read or written in.

    >>> topic_queues({"topics.json": {"topicConfigTable": {"t": {"readQueueNums": 4}}}})
    {'t': 4}
    """
    found: dict[str, int] = {}
    table = config.get("topics.json", {}).get("topicConfigTable")
    for name, row in _named(table).items():
        counts = [_named(row).get(side) for side in ("readQueueNums", "writeQueueNums")]
        found[name] = max((count for count in counts if isinstance(count, int)), default=0)
    return found


def topic_terms(config: Mapping[str, dict[str, object]]) -> dict[str, tuple[int, int]]:
    """Return of each topic of ``topics.json`` how many queues are written, and its permission.

    The permission has bits 4 (read) and 2 (write).

    >>> row = {"readQueueNums": 8, "writeQueueNums": 2, "perm": 6}
    >>> topic_terms({"topics.json": {"topicConfigTable": {"t": row}}})
    {'t': (2, 6)}
    """
    found: dict[str, tuple[int, int]] = {}
    for name, row in _named(config.get("topics.json", {}).get("topicConfigTable")).items():
        queues, permission = (_named(row).get(one) for one in ("writeQueueNums", "perm"))
        if isinstance(queues, int) and isinstance(permission, int):
            found[name] = queues, permission & 6
    return found


def batch_topics(config: Mapping[str, dict[str, object]]) -> frozenset[str]:
    """Return the topics of ``topics.json`` that have batch queues.

    >>> row = {"attributes": {"queue.type": "BatchCQ"}}
    >>> sorted(batch_topics({"topics.json": {"topicConfigTable": {"t": row, "u": {}}}}))
    ['t']
    """
    table = _named(config.get("topics.json", {}).get("topicConfigTable"))
    rows = {name: _named(_named(row).get("attributes")) for name, row in table.items()}
    return frozenset(name for name, row in rows.items() if row.get("queue.type") == "BatchCQ")


def _named(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
