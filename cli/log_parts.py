"""What ``twinlog log info`` shows of a store besides its segments: queues, timers, config files.

Each part is a table for people and one field of the document for machines. Queues are those that
recovery would leave; timers and config files are shown as they lie, RocketMQ's own.

Not here: reading them (``twinlog.store_reader``, ``twinlog.store_timers``).
"""

from __future__ import annotations

from dataclasses import dataclass

from cli.fields import table
from cli.render import Cell, Table, Time, columns
from twinlog.store_reader import StoreReader
from twinlog.store_timers import DELETE, ROLL, Timers, TimerSlot, TimerUnit

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its field of the document, and its table."""

    name: str
    items: list[Fields]
    table: Table


def queues(store: StoreReader) -> Part:
    """Every queue with its range; of a compacted topic also what its compacted copy holds."""
    items: list[Fields] = []
    rows: list[tuple[Cell, ...]] = []
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
        held = None if kept is None else kept.count
        rows.append((queue.topic, queue.queue, queue.kind, queue.min, queue.max, held))
    shown = Table(columns("TOPIC QUEUE> KIND START> END> COMPACTED>"), rows, title="queues")
    return Part("queues", items, shown)


def timers(store: StoreReader) -> Part:
    """Every second of RocketMQ's timer wheel that was used, with its records, newest first."""
    found = Timers(store.root)
    items: list[Fields] = []
    rows: list[tuple[Cell, ...]] = []
    for slot in found.slots():
        units = list(found.chain(slot))
        items.append(_slot(slot, units))
        rows.append((Time(slot.time_ms), slot.count, len(units), slot.last))
    found.close()
    shown = Table(columns("TIME MESSAGES> UNITS> NEWEST>"), rows, title="timers")
    return Part("timers", items, shown)


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
    rows: list[tuple[Cell, ...]] = []
    for name, content in store.config().items():
        items.append({"file": name, "content": content})
        tables = ((key, table(value)) for key, value in content.items() if key != "dataVersion")
        sizes = [f"{key} {len(held)}" for key, held in tables if held]
        rows.append((name, ", ".join(sizes) or "-"))
    return Part("metadata", items, Table(columns("FILE ENTRIES"), rows, title="metadata"))
