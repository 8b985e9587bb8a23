"""The table of golden cases, both directions: what each store becomes in our hands.

``python -m tests.golden.compatibility`` writes the table between its two marks in
``docs/compatibility.md``; a test looks that it is what the code does.

Each cell is found by doing it: the case is read and compared with its manifest, planned for repair,
and planned for adoption.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from storage.errors import ForeignStore
from storage.tools.adopt import plan_adoption
from storage.tools.repair import plan_repair
from tests.stores.golden import cases, manifest, unpack
from twinlog.store.reader import StoreReader

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- table of cases: begin -->\n", "<!-- table of cases: end -->\n"
HEAD = (
    "| golden case | RocketMQ wrote it, twinlog reads it | `log repair` would | `store adopt` |\n"
    "|---|---|---|---|\n"
)


def read(root: Path, case: str) -> str:
    """What is equal to the manifest; a difference is named."""
    wanted = manifest(case)
    with StoreReader(root) as store:
        found = {
            "log": (store.start, store.end)
            == (wanted["log"]["min_offset"], wanted["log"]["max_offset"]),
            "records": [r.log_offset for r in store.records()]
            == [m["physical_offset"] for m in wanted["messages"]],
            "queues": [(q.topic, q.queue, q.min, q.max) for q in store.queues()]
            == sorted((q["topic"], q["queue_id"], q["min"], q["max"]) for q in wanted["queues"]),
            "keys": all(
                store.find_key(q["topic"], q["key"]) == q["physical_offsets"]
                for q in wanted["key_queries"]
            ),
            "config": store.config() == wanted["config"],
        }
    different = [name for name, equal in found.items() if not equal]
    counts = f"{len(wanted['messages'])} records, {len(wanted['queues'])} queues"
    return f"differs: {', '.join(different)}" if different else f"equal: {counts}"


def repaired(root: Path) -> str:
    """The plan in a few words."""
    with StoreReader(root) as store:
        plan = plan_repair(store)
    kinds: dict[str, int] = {}
    for action in plan.actions:
        kinds[action.kind.value] = kinds.get(action.kind.value, 0) + 1
    lost = f"; {len(plan.lost)} lost" if plan.lost else ""
    return (", ".join(f"{n} x {kind}" for kind, n in kinds.items()) or "do nothing") + lost


def adopted(root: Path) -> str:
    """Where our first epoch would begin, or why not."""
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        try:
            value = plan_adoption(reader, ours)
        except ForeignStore as error:
            return error.text.removeprefix("the directory cannot be adopted: ")
    return f"epoch {value.epoch} at {value.border}"


def table() -> str:
    """One line for each case."""
    lines: list[str] = []
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            root = unpack(case, Path(folder))
            lines.append(f"| {case} | {read(root, case)} | {repaired(root)} | {adopted(root)} |\n")
    return HEAD + "".join(lines)


def written(text: str) -> str:
    """The page with the table of today."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
