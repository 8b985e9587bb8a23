"""What a replay of an archive remembers: a file that says which batch is under way.

A batch is planned, remembered, sent, remembered as done. The tasks of the batch under way stand in
the file, so a replay that was killed sends the same rows in the same tasks again, whatever has been
added to the archive since, and the store recognises those that it has.

The file is replaced as a whole; a lock beside it keeps a second run away.

Units: log offsets are bytes, queue offsets count records, times are ms since 1970.

Not here: planning and sending (`twinlog.spark.jobs.replay.archive`).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinlog.errors import UsageError
from twinlog.spark.archive.archive_dir import sync_directory, write_durably
from twinlog.spark.archive.view import Shelf
from twinlog.spark.plan.splits import Piece

VERSION = 1
NAME = "archive.json"
STREAM_NAME = "replay.json"
"""Beside Spark's checkpoint, of a replay without an archive."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What one task of a batch reads: stretches of files, by their name in the archive."""

    shelves: tuple[Shelf, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """How far a replay came.

    Attributes:
        writer: Names the replay to the store.
        what: What decides which rows are sent and how; another replay has another memory.
        since_ms: First store time; None: all.
        batch: Number of the last batch that was planned; 0: none was.
        at: Log offset below which all segments of the archive are planned.
        following: By queue, the queue offset after what is planned.
        parts: The tasks of the batch, where it is not known that all of them ended.
    """

    writer: str
    what: Mapping[str, str]
    since_ms: int | None = None
    batch: int = 0
    at: int = 0
    following: Mapping[int, int] = field(default_factory=dict[int, int])
    parts: tuple[BatchPart, ...] = ()

    def text(self) -> str:
        """Return it as JSON.

        >>> memory = Memory("w", {"topic": "t"}, None, 2, 65536, {0: 7})
        >>> memory_of(memory.text()) == memory
        True
        """
        parts = [
            {
                "shelves": [[s.path, s.low, s.high, s.sha256] for s in part.shelves],
                "pieces": [[p.topic, p.queue, p.first, p.stop] for p in part.pieces],
            }
            for part in self.parts
        ]
        names = ("writer", "what", "since_ms", "batch", "at", "following")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        return json.dumps({"v": VERSION, **found, "parts": parts})


def memory_of(text: str) -> Memory:
    """Return what a file remembers.

    Raises:
        ValueError: It is of another version, or no memory.
    """
    found: dict[str, Any] = json.loads(text)
    try:
        if found.pop("v") != VERSION:
            raise ValueError("it is of another version")
        parts = [
            BatchPart(
                tuple(Shelf(*shelf) for shelf in part["shelves"]),
                tuple(Piece(*piece) for piece in part["pieces"]),
            )
            for part in found.pop("parts")
        ]
        following = {int(queue): number for queue, number in found.pop("following").items()}
        return Memory(**found, following=following, parts=tuple(parts))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from None


@contextmanager
def held(home: Path) -> Generator[None]:
    """Make the directory of a replay's memory, and keep other runs out of it.

    Raises:
        UsageError: Another run has it, or it remembers a replay without an archive.
    """
    if (home / "offsets").exists():
        text = f"{home} remembers a replay without an archive"
        raise UsageError(text, hint="name another directory with --resume", code="resume")
    with locked(home):
        yield


@contextmanager
def locked(home: Path) -> Generator[None]:
    """Keep other runs out of a directory, which is made where it is not there.

    Raises:
        UsageError: Another run has it.
    """
    home.mkdir(parents=True, exist_ok=True)
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"another replay that {home} remembers is running"
            raise UsageError(text, hint="wait until it ends", code="resume") from None
        yield
    finally:
        os.close(lock)


def refuse(home: Path) -> None:
    """Refuse to begin a replay without an archive where one with an archive is remembered.

    Raises:
        UsageError: It is.
    """
    if (home / NAME).exists():
        text = f"{home} remembers a replay with an archive"
        raise UsageError(text, hint="name the archive with --archive again", code="resume")


def same_stream(home: Path, what: Mapping[str, str]) -> None:
    """Remember what a replay without an archive is of, or refuse to continue with another one.

    Its rows are remembered by Spark's checkpoint, which knows nothing of what becomes of them.

    Raises:
        UsageError: Something that decides which rows are sent is not what it was.
    """
    file = home / STREAM_NAME
    if not file.exists():
        _replace(file, json.dumps({"v": VERSION, "what": dict(what)}))
        return
    try:
        was: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))["what"]
    except (ValueError, KeyError, TypeError) as error:
        text = f"{file} is not a memory of a replay: {error}"
        raise UsageError(text, hint="name another directory with --resume", code="resume") from None
    check_same(home, was, what)


def load(home: Path) -> Memory | None:
    """Return what a directory remembers; None when it is new.

    Raises:
        UsageError: Its file is no memory.
    """
    file = home / NAME
    if not file.exists():
        return None
    try:
        return memory_of(file.read_text(encoding="utf-8"))
    except ValueError as error:
        text = f"{file} is not a memory of a replay: {error}"
        hint = "name another directory with --resume: all is sent again then"
        raise UsageError(text, hint=hint, code="resume") from None


def save(home: Path, memory: Memory) -> None:
    """Remember: at once and for good, or not at all."""
    _replace(home / NAME, memory.text())


def _replace(file: Path, text: str) -> None:
    aside = file.with_name(f".{file.name}")
    aside.unlink(missing_ok=True)
    write_durably(aside, text.encode())
    aside.replace(file)
    sync_directory(file.parent)


def check_same(home: Path, was: Mapping[str, str], what: Mapping[str, str]) -> None:
    """Refuse to continue with a replay of other rows.

    Args:
        home: Directory of the memory.
        was: What it remembers.
        what: What is asked for now.

    Raises:
        UsageError: Something that decides which rows are sent is not what it was.
    """
    for name, value in what.items():
        before = was.get(name)
        if before != value:
            text = f"{home} remembers a replay whose {name} is {before!r}, not {value!r}"
            hint = "go on with the same options, or name another directory with --resume"
            raise UsageError(text, hint=hint, code="resume")
