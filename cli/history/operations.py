"""A history: JSON lines, one operation of a client each; the last line of an ``id`` counts.

A recorder writes an operation before its request leaves (its outcome is unknown then) and again
when it has ended. So a process that is killed leaves everything that it may have caused. The
fields are those of `Operation`; fields that this version does not know are ignored.

Not here: what a history must look like (``cli.history.checker``).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import cast

from twinlog.errors import UsageError

KINDS = ("send", "read", "end")
OUTCOMES = ("ok", "fail", "unknown")
CONFIRMED = "confirmed"
LINE_BYTES_MAX = 64 << 20
"""Longest line that is read: a read of a whole queue names all its messages."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What one client asked, when, and what it heard.

    Attributes:
        id: Unique in the history.
        client: Who asked, in any words.
        op: ``send``, ``read`` (messages of one queue) or ``end`` (where a queue ends).
        topic, queue: Where.
        begin: When the request left, seconds of one monotonic clock of the whole history.
        end: When its outcome was known; None: never.
        outcome: ``ok``; ``fail``: nothing was stored and nothing will be; ``unknown``.
        records: Names of the messages, in order; each message has a name of its own.
        offset: Queue offset of the first message sent; None: the answer did not say.
        ack: What an answered send waited for; what is weaker than ``confirmed`` may vanish.
        producer, sequence: Sends of one producer to one queue stand there in this order.
        start: Queue offset at which ``records`` of a read begin (``from`` in the file).
        value: Where the queue ends.
        settled: A master vouched that there is nothing more; without it the answer may be old.
        epoch: Of the node that answered; 0: not known.
    """

    id: str
    client: str
    op: str
    topic: str
    queue: int
    begin: float
    end: float | None = None
    outcome: str = "unknown"
    records: tuple[str, ...] = ()
    offset: int | None = None
    ack: str = CONFIRMED
    producer: str = ""
    sequence: int | None = None
    start: int = 0
    value: int = 0
    settled: bool = False
    epoch: int = 0

    def to_json(self) -> dict[str, object]:
        """Return its line as a map; what has its default is left out."""
        told: dict[str, object] = {}
        for one in fields(self):
            value: object = getattr(self, one.name)
            if value != one.default or one.name in ("end", "outcome"):
                told["from" if one.name == "start" else one.name] = value
        return told


def parse(line: Mapping[str, object], where: str) -> Operation:
    """Return the operation of a line.

    Raises:
        UsageError: A field is missing, or has the wrong type; the text names ``where``.
    """
    take = _Fields(line, where)
    number = line.get("id")
    op, outcome = take.text("op"), take.text("outcome")
    if op not in KINDS or outcome not in OUTCOMES or not isinstance(number, (str, int)):
        raise take.wrong("id, op or outcome")
    return Operation(
        str(number),
        take.text("client"),
        op,
        take.text("topic"),
        take.number("queue"),
        take.seconds("begin"),
        None if line.get("end") is None else take.seconds("end"),
        outcome,
        take.names("records"),
        None if line.get("offset") is None else take.number("offset"),
        take.text("ack", CONFIRMED),
        take.text("producer", ""),
        None if line.get("sequence") is None else take.number("sequence"),
        take.number("from", 0),
        take.number("value", 0),
        line.get("settled") is True,
        take.number("epoch", 0),
    )


def load(path: Path) -> list[Operation]:
    """Return the operations of a file, in the order in which they began.

    A last line that was cut off (its writer was killed) is passed over.

    Raises:
        UsageError: A line is not an operation.
        OSError: The file cannot be read.
    """
    found: dict[str, Operation] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            if len(line) > LINE_BYTES_MAX:
                raise UsageError(f"{where} is longer than {LINE_BYTES_MAX} bytes", code="history")
            data: object = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                continue
            raise UsageError(f"{where} is not JSON: {error}", code="history") from None
        if not isinstance(data, dict):
            raise UsageError(f"{where} is not an object", code="history")
        one = parse(cast("dict[str, object]", data), where)
        found[one.id] = one
    return sorted(found.values(), key=lambda one: one.begin)


def write(path: Path, operations: Iterable[Operation]) -> None:
    """Write a whole history.

    Raises:
        OSError: The file cannot be written.
    """
    lines = [json.dumps(one.to_json()) + "\n" for one in operations]
    path.write_text("".join(lines), encoding="utf-8")


class Recorder:
    """Writes a history while it happens; usable from several threads.

    Args:
        path: The file; what it holds is kept, so a later process may go on with it.
        run: Distinguishes the ``id`` of several recorders of one history.

    Raises:
        OSError: The file cannot be written; so do `begin` and `done`.
    """

    def __init__(self, path: Path, run: str = "") -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._run = run
        self._begun = 0
        self._open: dict[str, Operation] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self,
        op: str,
        client: str,
        topic: str,
        queue: int,
        *,
        records: tuple[str, ...] = (),
        producer: str = "",
        sequence: int | None = None,
        ack: str = CONFIRMED,
        at: float | None = None,
    ) -> str:
        """Note that a request leaves now, or left ``at``; returns its ``id`` for `done`."""
        with self._lock:
            self._begun += 1
            number = f"{self._run}{self._begun}"
            one = Operation(
                number, client, op, topic, queue, time.monotonic() if at is None else at,
                records=records,
                producer=producer, sequence=sequence, ack=ack,
            )  # fmt: skip
            self._open[number] = one
            self._write(one)
        return number

    def done(
        self,
        number: str,
        outcome: str,
        *,
        records: tuple[str, ...] | None = None,
        offset: int | None = None,
        start: int = 0,
        value: int = 0,
        settled: bool = False,
        epoch: int = 0,
    ) -> None:
        """Note what was heard of the request ``number``."""
        with self._lock:
            one = self._open.pop(number)
            one = replace(
                one, end=time.monotonic(), outcome=outcome, offset=offset, start=start,
                value=value, settled=settled, epoch=epoch,
                records=one.records if records is None else records,
            )  # fmt: skip
            self._write(one)

    def _write(self, one: Operation) -> None:
        self._file.write(json.dumps(one.to_json()) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; what has not ended stays unknown."""
        self._file.close()


class _Fields:
    """Reads the fields of one line."""

    def __init__(self, line: Mapping[str, object], where: str) -> None:
        self._line = line
        self._where = where

    def wrong(self, name: str) -> UsageError:
        return UsageError(f"{self._where}: {name} is missing or of the wrong type", code="history")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._line.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name)
        return value

    def number(self, name: str, default: int | None = None) -> int:
        value = self._line.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(name)
        return value

    def seconds(self, name: str) -> float:
        value = self._line.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.wrong(name)
        return float(value)

    def names(self, name: str) -> tuple[str, ...]:
        value = self._line.get(name, [])
        if not isinstance(value, list):
            raise self.wrong(name)
        names = cast("list[object]", value)
        if not all(isinstance(one, str) for one in names):
            raise self.wrong(name)
        return tuple(cast("list[str]", names))
