"""Structured logs: one event per line, facts as fields, no prose to take apart.

A `NodeLog` belongs to one node; there is nothing global, so several nodes of one test write to
several streams. Text on a terminal, JSON lines elsewhere, always to stderr. Always bound: node,
role, epoch (`NodeLog.bind`).

`EVENTS` lists every event name with its meaning; names are ``noun_verbed``. A test finds names in
the sources that the table lacks, and the table is printed into the docs. Levels: ``error`` needs a
person now; ``warning`` will need one; ``info`` is a change of state, a handful per minute;
``debug`` is per connection or batch.

A repeated warning is counted, not repeated: the first goes out, those of the same kind (same name,
same peer, limit, kind; errors: all facts the same) within a minute are counted, the next one
carries ``repeats``. A stream that
takes nothing more (closed pipe, full disk) loses lines, never the node.

Not here: figures (``node.metrics``). Sources: user-experience.md section 8.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TextIO

import structlog

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_OWN_KEYS = frozenset({"event", "level", "time"})
"""Keys of a line that no fact may take; one of that name is written with ``fact_`` before it."""

REPEAT_SECONDS = 60.0
"""Warnings of one kind are written at most once in this time."""

KINDS_MAX = 1024
"""Kinds of warnings remembered; beyond it the oldest is forgotten and may be repeated."""

KIND_FACTS = ("peer", "node", "kind", "limit", "topic", "code")
"""Facts that make two warnings of one name different."""

EVENTS: Mapping[str, str] = {
    "batch_damaged": "a batch arrived or lay with a bad CRC; it was refused and is asked for again",
    "batch_refused": "a slave refused a batch; the master looks at its own copy before it sends "
    "again",
    "comes_later": "something of a later version was asked of this node; it was refused",
    "connection_defect": "a defect of this program met while one connection was served: only that "
    "one was closed; trace says where, report it",
    "connection_refused": "a client left the rules of the wire and was closed; kind says which",
    "coordinator_back": "the coordinator answers again",
    "coordinator_lost": "the coordinator does not answer; traffic goes on, roles cannot change",
    "coordinator_refused": "the coordinator answered a question with an error",
    "coordinator_started": "the coordinator listens",
    "coordinator_stopped": "the coordinator ended",
    "crash": "the node cannot go on and stops; its store is left for recovery",
    "disk_full": "the disk took nothing more; writes are refused until it does",
    "dispatch_waits": "the disk takes no more queue entries; readers wait, nothing is lost",
    "index_mended": "a file of the key index was damaged: made anew, or set aside and built again",
    "cut_without_copy": "unconfirmed bytes were cut and not kept aside: there was no room for them",
    "disk_accepts": "the disk has room again; writes are taken",
    "disk_refuses": "the disk is fuller than disk_refuse; writes are refused, reads go on",
    "fenced": "the node follows nobody and writes nothing: it waits for the register",
    "following": "the node follows a master from this offset on",
    "handshake_refused": "the master refused the handshake",
    "in_sync_set": "the in-sync set changed; members count for the confirm offset",
    "leaves_in_sync": "a member is to leave the in-sync set; why says what it lacked",
    "log_file_leaves": "retention: the log starts behind this file from now on",
    "log_cut": "bytes that were never confirmed were cut before following the new master",
    "master": "the node is master of a new epoch, which starts here",
    "memory_not_locked": "memory that the settings want locked is not: raise RLIMIT_MEMLOCK, "
    "or the kernel may move it out",
    "node_started": "the node serves; what it found on disk and where it listens",
    "node_stopped": "the node stopped in order; its store is closed",
    "node_stopping": "the node was told to stop: it refuses writes and answers what it owes",
    "odd_acknowledgement": "a slave acknowledged what it cannot have; its link was closed",
    "odd_frame": "another node sent a frame that makes no sense; its link was closed",
    "odd_group_state": "the coordinator sent a group state that cannot be read",
    "other_register": "the coordinator is another register than the one this node knows",
    "own_copy_damaged": "the master found its own copy of a batch damaged",
    "quarantined": "the log is damaged below its flushed offset; nothing was cut, see twinlog log "
    "verify",
    "register_branched": "the register shows another history of a revision this node knows",
    "register_changed": "one operation changed the register: who is master, who is in sync",
    "register_readonly": "the register was shown a future it does not know; it changes nothing",
    "register_went_back": "the register shows an older epoch than this node has promised",
    "registered": "the coordinator gave this start of the node its session",
    "registered_elsewhere": "another process registered under this node's name",
    "reseed_comes_later": "the master no longer has what this node lacks; copying files comes "
    "later",
    "retention_waits": "the disk is fuller than disk_force and the oldest file may not go; why "
    "says what holds it",
    "slaves_overtaken": "the disk was too full to keep what these members lack; they must be made "
    "anew",
    "slave_left": "a slave's link ended",
    "slave_refused": "a slave's handshake was refused; code says why",
    "slave_streams": "a slave takes the log from this offset on",
    "slept": "the process did not run for so many seconds; its slaves are not blamed for them",
    "stepped_down": "the node is no longer master of its epoch",
    "switchover": "the master hands over to a slave",
    "switchover_over": "a switchover was given up",
    "tasks_dumped": "SIGUSR1: every task with the place where it waits",
}
"""Every event name with its meaning."""


class Sink(Protocol):
    """What writes one line."""

    def msg(self, message: str) -> None:
        """Write the line."""


class _Lines:
    """Writes lines to a stream and survives its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def msg(self, message: str) -> None:
        """Write one line; a stream that refuses it loses it."""
        try:
            self._stream.write(message + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1

    debug = info = warning = error = msg


@dataclass(slots=True)
class _Repeated:
    written_at: float
    count: int = 0


class NodeLog:
    """The log of one node; calling it writes an event.

    Args:
        level: Lowest level written.
        style: ``auto`` (text on a terminal, JSON elsewhere), ``text`` or ``json``.
        stream: Standard error unless a test says otherwise.
        wall: Seconds since 1970; a test gives its own.
        facts: Bound to every line, ``node`` first of all.
    """

    def __init__(
        self,
        *,
        level: str = "info",
        style: str = "auto",
        stream: TextIO | None = None,
        wall: Callable[[], float] = time.time,
        **facts: object,
    ) -> None:
        out = stream or sys.stderr
        text = style == "text" or (style == "auto" and out.isatty())
        self._wall = wall
        self._level = LEVELS[level]
        self._facts: dict[str, object] = dict(facts)
        self._repeated: dict[tuple[object, ...], _Repeated] = {}
        self._logger = structlog.wrap_logger(
            _Lines(out),
            processors=[self._stamp, _as_text if text else _as_json],
            wrapper_class=structlog.BoundLogger,
            cache_logger_on_first_use=True,
        )
        self.counts: dict[tuple[str, str], int] = {}
        """Events by (name, level) since the start, written or not."""

    def bind(self, **facts: object) -> None:
        """Put ``facts`` on every line from now on: role and epoch after each change."""
        self._facts.update(facts)

    def set_level(self, level: str) -> None:
        """Write events from ``level`` on."""
        self._level = LEVELS[level]

    def __call__(self, name: str, level: str, /, **facts: object) -> None:
        """Write one event; never raises on account of the stream.

        Dashes in the name are written as underscores; ``alarm`` is another word for ``error``.
        """
        name, level = name.replace("-", "_"), level if level in LEVELS else "error"
        self.counts[(name, level)] = self.counts.get((name, level), 0) + 1
        if LEVELS[level] < self._level:
            return
        if LEVELS[level] >= LEVELS["warning"]:
            repeats = self._repeats(name, level, facts)
            if repeats is None:
                return
            if repeats:
                facts = {**facts, "repeats": repeats}
        write: Callable[..., object] = getattr(self._logger, level)
        told = {**self._facts, **facts}
        for taken in _OWN_KEYS & told.keys():
            told[f"fact_{taken}"] = told.pop(taken)
        write(name, level=level, **told)

    def _repeats(self, name: str, level: str, facts: Mapping[str, object]) -> int | None:
        """Return how many were left out since the last one, or None to leave this one out."""
        tell = KIND_FACTS if level == "warning" else sorted(facts)
        kind = (name, *(str(facts.get(fact)) for fact in tell))
        now = self._wall()
        known = self._repeated.get(kind)
        if known is not None and now - known.written_at < REPEAT_SECONDS:
            known.count += 1
            return None
        while len(self._repeated) >= KINDS_MAX:
            del self._repeated[next(iter(self._repeated))]
        self._repeated[kind] = _Repeated(now)
        return known.count if known is not None else 0

    def _stamp(
        self, logger: object, method: str, facts: MutableMapping[str, object]
    ) -> MutableMapping[str, object]:
        facts["time"] = self._wall()
        return facts


def _when(seconds: object) -> datetime:
    return datetime.fromtimestamp(float(str(seconds)), tz=UTC)


def _as_json(logger: object, method: str, facts: MutableMapping[str, object]) -> str:
    when = _when(facts.pop("time")).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    first = {"time": when, "level": facts.pop("level"), "event": facts.pop("event")}
    return json.dumps({**first, **facts}, default=str, ensure_ascii=False)


def _as_text(logger: object, method: str, facts: MutableMapping[str, object]) -> str:
    when = _when(facts.pop("time")).strftime("%H:%M:%S.%f")[:-3]
    level, event = facts.pop("level"), facts.pop("event")
    fields = " ".join(f"{name}={_shown(value)}" for name, value in facts.items())
    return f"{when} {level:<7} {event:<20} {fields}".rstrip()


def _shown(value: object) -> str:
    """Return a fact for a line of text; quoted when it has blanks or line breaks."""
    if isinstance(value, (list, tuple, set, frozenset)):
        text = ",".join(str(item) for item in value)  # pyright: ignore
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = str(value)
    plain = text and not any(char.isspace() or char in '"=' for char in text) and text.isprintable()
    return text if plain else json.dumps(text, ensure_ascii=False)


def reference() -> str:
    """Return the page ``docs/events.md``: every event with its meaning."""
    lines = ["# Log events", "", "| event | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    return "\n".join([*lines, ""])
