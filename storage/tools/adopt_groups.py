"""What an adoption takes over of RocketMQ's consumers: groups, positions, messages in flight.

Positions are in ``consumerOffset.json``, or in ``lmqConsumerOffset.json`` where a broker with light
queues wrote it; ``topic@group@broadcast`` is where members of a broadcast group begin. A position
beyond its queue's end is its end; one of a queue that does not exist is left out.

A message that RocketMQ has popped lies below its group's position. What is out is known from
checkpoints (tag ``ck``) and acknowledgements (``ack``, ``bAck``) in the timer topic and in the
revive topics: a checkpoint counts until the revive service has passed it, and what it names and
nothing acknowledged is handed out again once its time has passed. They are matched by topic, group,
queue, pop time and first offset. What the broker held in memory alone is lost with it: such
messages come again, as RocketMQ's own start would give them.

With ``kvStore`` all of that is in a database of that broker, which twinlog does not read: refused.

Not here: the adoption itself (`storage.tools.adopt`).

Sources: RocketMQ 5.3 (``ConsumerOffsetManager``, ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``,
``PopReviveService``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from storage.errors import ForeignStore
from storage.messaging.groups import DELAYS_MAX, Group, Retry, group_refusal
from storage.recovery.group_export import BROADCAST, SKIPPED_DELAYS_MS, WRITER
from twinlog.errors import CorruptionError
from twinlog.format.group_rows import LeaseRow, Row, ShareRow
from twinlog.format.record import Record
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.store.reader import StoreReader

POP_DATABASE = "kvStore"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
BROKERS_OWN = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
     "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)  # fmt: skip
"""Groups that every broker makes for itself; with ``CID_RMQ_SYS_`` and ``CID_SYS_RMQ_``."""
_SYSTEM = ("CID_RMQ_SYS_", "CID_SYS_RMQ_", "rmq_sys_")

Place = tuple[str, str, int]
"""(group, topic, queue)."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """What is taken over.

    Attributes:
        groups: To be created.
        positions: Where each goes on.
        flying: Messages below those positions that are handed out again: queue offset to the time
            from which on, ms.
        left_out: (group, why) of groups that cannot be created.
    """

    groups: tuple[Group, ...] = ()
    positions: tuple[tuple[Place, int], ...] = ()
    flying: tuple[tuple[Place, tuple[tuple[int, int], ...]], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def in_flight(self) -> int:
        """How many messages RocketMQ had popped and not settled."""
        return sum(len(offsets) for _, offsets in self.flying)

    def rows(self) -> Iterator[Row]:
        """Yield the rows that say all of it; shares are numbered from 1."""
        out = dict(self.flying)
        for share, ((group, topic, queue), position) in enumerate(self.positions, 1):
            flying = out.get((group, topic, queue), ())
            start = min([position, *(offset for offset, _ in flying)])
            yield ShareRow(share, group, topic, 0, queue, start)
            n = 0
            for n, (offset, until) in enumerate(flying, 1):
                yield LeaseRow(share, n, offset, 1, 0, 0, until, 1)
            if flying and position > flying[-1][0] + 1:
                yield LeaseRow(share, n + 1, position, 0, 0, 0, 0, 0)


NOTHING = Consumed()


def read_consumed(reader: StoreReader) -> Consumed:
    """Return what a stopped broker's directory says of its consumers.

    Raises:
        ForeignStore: POP kept its state in a database.
        CorruptionError: A file and its backup are both damaged.
    """
    if any((reader.root / POP_DATABASE).glob("*")):
        raise ForeignStore(
            f"the directory cannot be adopted: {POP_DATABASE} is a database of what POP has out",
            hint="let its consumers finish, stop the broker, and remove the folder: what was "
            "popped and not acknowledged is then lost to its groups",
            code="pop-database",
        )
    tables = reader.config()
    ends = {(one.topic, one.queue): (one.min, one.max) for one in reader.queues()}
    stored = _positions(tables)
    groups, left_out = _groups(tables, {group for group, _, _ in stored})
    known = {group.name for group in groups}
    positions = {
        (group, topic, queue): max(0, min(offset, ends[topic, queue][1]))
        for (group, topic, queue), offset in stored.items()
        if group in known and (topic, queue) in ends
    }
    flying: dict[Place, tuple[tuple[int, int], ...]] = {}
    for place, offsets in _flying(reader, positions_of(tables, REVIVE_GROUP)).items():
        group, topic, queue = place
        if group in known and (topic, queue) in ends:
            low, end = ends[topic, queue]
            kept = sorted((one, until) for one, until in offsets.items() if low <= one < end)
            flying[place] = tuple(kept)
            if kept:  # a position that was stored before the pop
                positions[place] = max(positions.get(place, 0), kept[-1][0] + 1)
    return Consumed(
        groups,
        tuple(sorted(positions.items())),
        tuple(sorted((place, out) for place, out in flying.items() if out)),
        left_out,
    )


def _positions(tables: Mapping[str, dict[str, object]]) -> dict[Place, int]:
    """Return the positions that count: a broker with light queues reads its own file alone."""
    plain, light = _tables(tables)
    table = light if light is not None else plain
    found: dict[Place, int] = {}
    rows = _map(table.get("offsetTable"))
    for key, queues in sorted(rows.items(), key=lambda row: not row[0].endswith(BROADCAST)):
        for queue, offset in _map(queues).items():
            _note(found, key, queue, offset)
    for key, offset in _map((light or {}).get("lmqOffsetTable")).items():
        _note(found, key, "0", offset)
    return found


def _tables(
    tables: Mapping[str, dict[str, object]],
) -> tuple[dict[str, object], dict[str, object] | None]:
    """Return both files of positions; None for the second one where it is older than the first.

    A twinlog store has both. A broker writes the one that it reads, with all that the other has.
    """
    plain, light = tables.get("consumerOffset.json"), tables.get("lmqConsumerOffset.json")
    name, said = WRITER
    if plain is not None and light is not None and light.get(name) == said != plain.get(name):
        light = None
    return plain or {}, light


def _note(found: dict[Place, int], key: str, queue: str, offset: object) -> None:
    topic, sign, group = key.removesuffix(BROADCAST).partition("@")
    if sign and queue.isdigit() and isinstance(offset, int) and not topic.startswith(_SYSTEM):
        found[group, topic, int(queue)] = offset


def positions_of(
    tables: Mapping[str, dict[str, object]], wanted: str
) -> dict[tuple[str, int], int]:
    """Return how far one of a broker's own services is in each queue of its topics."""
    plain, light = _tables(tables)
    table = _map(plain.get("offsetTable")) | _map((light or {}).get("offsetTable"))
    found: dict[tuple[str, int], int] = {}
    for key, queues in table.items():
        topic, _, group = key.partition("@")
        if group == wanted:
            for queue, offset in _map(queues).items():
                if queue.isdigit() and isinstance(offset, int):
                    found[topic, int(queue)] = offset
    return found


def _groups(
    tables: Mapping[str, dict[str, object]], used: set[str]
) -> tuple[tuple[Group, ...], tuple[tuple[str, str], ...]]:
    rows = _map(tables.get("subscriptionGroup.json", {}).get("subscriptionGroupTable"))
    plain = {
        key.partition("@")[2]
        for name in ("consumerOffset.json", "lmqConsumerOffset.json")
        for table in ("offsetTable", "lmqOffsetTable")
        for key in _map(tables.get(name, {}).get(table))
        if not key.endswith(BROADCAST)
    }
    groups: list[Group] = []
    left_out: list[tuple[str, str]] = []
    for name in sorted({*rows, *used}):
        if name.startswith(_SYSTEM) or (name in BROKERS_OWN and name not in used):
            continue
        why = group_refusal(name)
        if why is not None:
            left_out.append((name, why))
            continue
        mode = "broadcast" if name in used and name not in plain else "shared"
        if mode == "shared" and _map(rows.get(name)).get("consumeMessageOrderly") is True:
            mode = "ordered"
        groups.append(_group(name, mode, _map(rows.get(name))))
    return tuple(groups), tuple(left_out)


def _group(name: str, mode: str, row: Mapping[str, object]) -> Group:
    made = Group(name, mode)
    attempts = row.get("retryMaxTimes")
    if isinstance(attempts, int) and not isinstance(attempts, bool):
        made = replace(made, attempts=attempts if attempts > 0 else made.attempts)
    made = replace(made, retry=_retry(_map(row.get("groupRetryPolicy"))))
    return made if made.refusal() is None else Group(name, mode)


def _retry(policy: Mapping[str, object]) -> Retry:
    """Return the policy; of its table RocketMQ uses what follows the first two."""
    growing = _map(policy.get("exponentialRetryPolicy"))
    if policy.get("type") == "EXPONENTIAL":
        numbers = [growing.get(name) for name in ("initial", "max", "multiplier")]
        first, longest, factor = (
            one if isinstance(one, int) else default
            for one, default in zip(numbers, (5_000, 7_200_000, 2), strict=True)
        )
        made = Retry((first, longest), factor)
    else:
        table = _map(policy.get("customizedRetryPolicy")).get("next")
        if not isinstance(table, list) or not table:
            return Retry()
        delays = [one for one in cast("list[object]", table) if isinstance(one, int)]
        made = Retry(tuple(delays[len(SKIPPED_DELAYS_MS) :] or delays[-1:])[:DELAYS_MAX])
    return made if made.refusal() is None else Retry()


_Key = tuple[str, str, int, int, int]
"""(group, topic, queue, pop time, first offset)."""


@dataclass(slots=True)
class _Pop:
    """One checkpoint: what it names, when that is due, and whether it was revived."""

    offsets: list[int]
    due: int
    passed: bool = False


def _flying(
    reader: StoreReader, revived: Mapping[tuple[str, int], int]
) -> dict[Place, dict[int, int]]:
    """Return the messages that are out: queue offset to the time from which on they are due."""
    pops: dict[tuple[_Key, str], _Pop] = {}
    acked: dict[_Key, set[int]] = defaultdict(set)
    for one in _pop_records(reader):
        fields = _body(one)
        try:
            topic, group, queue = str(fields["t"]), str(fields["c"]), _number(fields["q"])
            key = (group, topic, queue, _number(fields["pt"]), _number(fields["so"]))
            if one.tag != "ck":
                acked[key].update(_acked(fields))
                continue
            name = str(fields.get("rp"))
            pop = pops.setdefault((key, name), _Pop(_named(fields), key[3] + _number(fields["it"])))
        except (KeyError, TypeError, ValueError):
            continue  # of another shape: RocketMQ passes over it as well
        if one.topic.startswith(REVIVE_PREFIX):
            pop.passed |= one.queue_offset < revived.get((one.topic, one.queue), 0)
    found: dict[Place, dict[int, int]] = {}
    for (key, _), pop in pops.items():
        out = [] if pop.passed else [one for one in pop.offsets if one not in acked[key]]
        for offset in out:
            times = found.setdefault(key[:3], {})
            times[offset] = max(times.get(offset, 0), pop.due)
    return found


def _pop_records(reader: StoreReader) -> Iterator[Record]:
    """Yield checkpoints and acknowledgements."""
    for queue in reader.queues():
        if queue.topic != TIMER_TOPIC and not queue.topic.startswith(REVIVE_PREFIX):
            continue
        for entry in queue.entries():
            found = reader.record_at(entry.log_offset)
            if found is None or found.tag not in ("ck", "ack", "bAck"):
                continue
            if found.properties.get("REAL_TOPIC", found.topic).startswith(REVIVE_PREFIX):
                yield found


def _body(one: Record) -> dict[str, object]:
    try:
        return _map(json.loads(one.body))
    except (ValueError, CorruptionError):
        return {}


def _named(fields: Mapping[str, object]) -> list[int]:
    """Return the offsets that a checkpoint names and that are not acknowledged in it."""
    start, bits = _number(fields["so"]), _number(fields.get("bm", 0))
    steps = fields.get("d")
    count = _number(fields["n"])
    known = cast("list[object]", steps) if isinstance(steps, list) and steps else range(count)
    offsets = [start + _number(step) for step in known]
    return [offset for number, offset in enumerate(offsets[:count]) if not bits >> number & 1]


def _acked(fields: Mapping[str, object]) -> list[int]:
    several = fields.get("aol")
    if isinstance(several, list):
        return [_number(one) for one in cast("list[object]", several)]
    return [_number(fields["ao"])]


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _map(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
