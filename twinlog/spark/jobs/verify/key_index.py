"""Does the key index of a store say what the log says?

The rules are those of ``twinlog log verify``: `twinlog.store.verify.key_chains` for the chains
within a file, `twinlog.store.verify.keys_against_log` for its cells beside the keys of the log. A
task takes one index file and reads the part of the log that its cells name. So a job and the
command give one answer.

Where no file holds a cell, the keys of the log are counted: an index can be switched off, so a lost
one looks the same as one that never was.

Offsets are log offsets in bytes, positions bytes in an index file. Nothing is written.

Not here: building an index (`twinlog.spark.jobs.rebuild.job`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog import kernels
from twinlog.format.key_index import INDEX_KEY
from twinlog.spark.directory.log_ranges import LogRange
from twinlog.spark.engine.engine import Engine
from twinlog.store.key_index import KeyIndex
from twinlog.store.reader import StoreReader
from twinlog.store.verify.findings import Finding
from twinlog.store.verify.key_chains import odd_indexes, settled_indexes
from twinlog.store.verify.keys_against_log import (
    READABLE,
    Compared,
    LogFacts,
    LogKeys,
    compare_file,
    cuts_of,
    findings_of,
    index_is_missing,
    without_index,
)


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What the check found.

    Attributes:
        findings: What is wrong, and what is only noted.
        unseen: Keys of the log that could be looked up nowhere: there is no index.
    """

    findings: Sequence[Finding] = ()
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class ProvenLog:
    """A log that tasks have proven: its ranges, and where the records of each end."""

    splits: Sequence[LogRange]
    ends: Sequence[int]

    def keys(self) -> LogKeys:
        """Return its keys, range by range."""
        spans = [(one.start, end) for one, end in zip(self.splits, self.ends, strict=True)]
        return LogKeys(spans, lambda number: _scan(self.splits[number], self.ends[number]))


def check_index(engine: Engine, root: Path, log: ProvenLog, end: int) -> IndexCheck:
    """Return what is wrong with the key index of a store whose log is sound and ends at ``end``."""
    with StoreReader(root) as store:
        odd = [
            Finding(grade, name, position, None, 0, text, READABLE)
            for name, position, text, grade in odd_indexes(store)
        ]
        whole = store.clean and not store.marks.live
        facts = LogFacts(store.ours, store.start, end, whole, cuts_of(store))
        missing = index_is_missing(store)
        names = [file.name for file in settled_indexes(store)]
        empty = all(file.header.next_cell <= 1 for file in store.keys.files)
        folder = store.root / "index"
    if odd:
        return IndexCheck(odd)
    unseen, found = 0, list[Finding]()
    if empty:
        unseen = sum(engine.spread(_count, list(zip(log.splits, log.ends, strict=True))))
        found += without_index(keys=unseen > 0) if missing else ()
    compared = engine.spread(partial(_compared, folder, names, log, facts), range(len(names)))
    return IndexCheck([*found, *findings_of(facts, compared)], unseen)


def _compared(
    folder: Path, names: Sequence[str], log: ProvenLog, facts: LogFacts, number: int
) -> Compared:
    """Compare one index file with the log."""
    files = [file for file in KeyIndex(folder, None).files if file.name in set(names)]
    return compare_file(facts, log.keys(), files, number)


def _scan(split: LogRange, end: int) -> bytes:
    data = split.read()
    return kernels.scan_keys(data, 0, min(end - split.start, len(data)), split.start)


def _count(part: tuple[LogRange, int]) -> int:
    """Return how many keys the records of a range have."""
    return len(_scan(*part)) // INDEX_KEY.size
