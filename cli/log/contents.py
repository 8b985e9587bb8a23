"""What ``twinlog log info`` shows besides segments: queues, what waits, timers, config files.

Each part is a table for people and one field of the document for machines. Queues are those that
recovery would leave; timers and config files are shown as they lie, RocketMQ's own.

Not here: reading them (`twinlog.store.reader`, `twinlog.store.timers`, `storage.tools.waiting`).
"""

from __future__ import annotations

from dataclasses import dataclass

from cli.answer import ABSENT, Table
from cli.fields import Fields, table, tables
from storage.tools.waiting import what_waits
from twinlog.format.waiting.delay_levels import LEVELS, delay_text
from twinlog.format.waiting.timers import DELETE, ROLL
from twinlog.store.delays import waiting_levels
from twinlog.store.reader import StoreReader
from twinlog.store.timers import Timers, TimerSlot, TimerUnit


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its field of the document, and its table."""

    name: str
    items: list[Fields]
    table: Table


def queues(store: StoreReader) -> Part:
    """Every queue with its range; of a compacted topic also what its compacted copy holds."""
    items: list[Fields] = []
    for queue in store.queues():
        kept = store.compacted.get((queue.topic, queue.queue))
        compacted = (
            None if kept is None else {"start": kept.min, "end": kept.max, "records": kept.count}
        )
        items.append(
            {
                "topic": queue.topic,
                "queue": queue.queue,
                "kind": queue.kind,
                "start": queue.min,
                "end": queue.max,
                "log_end": queue.max_log_offset,
                "compacted": compacted,
            }
        )
    heads = "TOPIC QUEUE> KIND START> END> COMPACTED>=compacted.records"
    return Part("queues", items, Table.of(heads, items, title="queues"))


def waiting(store: StoreReader) -> Part:
    """Every delay level that something waits for: how many, and when the first and last are due."""
    items: list[Fields] = [
        {
            "level": one.level,
            "delay": delay_text(one.level) if one.level <= LEVELS else None,
            "waiting": one.waiting,
            "next": one.next,
            "due_ms": one.due_ms,
            "last_ms": one.last_ms,
        }
        for one in waiting_levels(store)
    ]
    heads = "LEVEL> DELAY> WAITING> NEXT> DUE=due_ms:time LAST=last_ms:time"
    return Part("delays", items, Table.of(heads, items, title="delays"))


def messages(store: StoreReader) -> Part:
    """What waits for a time, for the end of a transaction, or for an acknowledgement."""
    items: list[Fields] = [
        {
            "what": one.what,
            "name": one.name,
            "waiting": one.messages if known else ABSENT,
            "due_ms": one.next_ms if known else None,
            "last_ms": one.last_ms if known else None,
        }
        for one in what_waits(store)
        for known in (one.messages >= 0,)
    ]
    heads = "WHAT NAME WAITING> DUE=due_ms:time LAST=last_ms:time"
    return Part("waiting", items, Table.of(heads, items, title="waiting"))


def timers(store: StoreReader) -> Part:
    """Every used second of RocketMQ's timer wheel with its records, newest first."""
    found = Timers(store.root)
    items: list[Fields] = []
    rows: list[Fields] = []
    for slot in found.slots():
        item = _slot(slot, list(found.chain(slot)))
        items.append(item)
        rows.append({**item, "units": len(tables(item["units"])), "newest": slot.last})
    found.close()
    heads = "TIME=time_ms:time MESSAGES> UNITS> NEWEST>"
    return Part("timers", items, Table.of(heads, rows, title="timers"))


def _slot(slot: TimerSlot, units: list[TimerUnit]) -> Fields:
    return {
        "time_ms": slot.time_ms,
        "messages": slot.count,
        "units": [
            {
                "position": unit.position,
                "offset": unit.log_offset,
                "size": unit.record_size,
                "due_ms": unit.time_ms,
                "rolled": bool(unit.magic & ROLL),
                "cancels": bool(unit.magic & DELETE),
            }
            for unit in units
        ],
    }


def metadata(store: StoreReader) -> Part:
    """Every config file; the table names how many entries its tables have."""
    items: list[Fields] = []
    rows: list[Fields] = []
    for name, content in store.config().items():
        items.append({"file": name, "content": content})
        parts = ((key, table(value)) for key, value in content.items() if key != "dataVersion")
        rows.append(
            {"file": name, "entries": [f"{key} {len(held)}" for key, held in parts if held]}
        )
    return Part("metadata", items, Table.of("FILE ENTRIES", rows, title="metadata"))
