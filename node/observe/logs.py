"""Structured logs: one event per line, facts as fields, no prose to parse.

A `NodeLog` belongs to one node; nothing is global, so several nodes of one test can write to
several streams. Text on a terminal, JSON lines elsewhere, always to stderr. Always bound: node,
role, epoch (`NodeLog.bind`).

`EVENTS` lists every event name with its meaning; names are ``noun_verbed``. A test finds names in
the sources that the table lacks, and the table is printed into the docs. Levels: ``error`` needs a
person now; ``warning`` will need one; ``info`` is a change of state, a handful per minute;
``debug`` is per connection or batch.

A repeated warning is counted, not repeated: the first goes out, those of the same kind (same name,
same peer, limit, kind; errors: all facts the same) within a minute are counted, the next one
carries ``repeats``. A stream that cannot be written (closed pipe, full disk) loses lines, but never
stops the node.

Not here: metrics (``node.observe.metrics``).
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TextIO, cast

import structlog

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_OWN_KEYS = frozenset({"event", "level", "time"})
"""Keys of a line that no fact may take; one of that name is written with ``fact_`` before it."""

REPEAT_SECONDS = 60.0
"""Warnings of one kind are written at most once in this time."""

KINDS_MAX = 1024
"""Kinds of warnings remembered; beyond it the oldest is forgotten and may be repeated."""

RECENT_KEPT = 200
"""Lines kept for those who watch."""

FACT_MAX = 200
"""Characters of a fact that are kept."""

KIND_FACTS = ("peer", "node", "kind", "limit", "topic", "code")
"""Facts that make two warnings of one name different."""

EVENTS: Mapping[str, str] = {
    "access_denied": "a request or a login was refused: kind is the request, or login; right and "
    "what are missing",
    "access_used": "a user administers topics, groups, the cluster, users or rules: request and op "
    "say how, what is what it is about",
    "certificates_read": "the files of the certificates were read again: new connections use them",
    "certificates_refused": "the new files of the certificates cannot be used: the old ones stay",
    "tls_refused": "a TLS handshake failed: port says where it was accepted, if it was; "
    "why says which side refused",
    "batch_repaired": "a damaged batch was replaced by another node's copy and is served again",
    "batch_not_found": "no other node gave a whole copy of a damaged batch; they are asked again",
    "batch_not_repaired": "another node's copy of a damaged batch did not fit, or was not written",
    "batch_rotten": "a batch on the disk is not what was written: it is refused, and other nodes "
    "are asked for it",
    "quarantine_ended": "everything that was damaged is whole again: the node follows a master",
    "scrubbed": "all sealed log files were compared with their check sums; found counts the "
    "damaged places since the start",
    "batch_damaged": "a batch with a wrong CRC arrived or was found; it was refused and is "
    "requested again",
    "batch_refused": "a slave refused a batch; the master checks its own copy before sending it "
    "again",
    "beginning_again": "the master no longer has what this node lacks: the node deletes its log "
    "and starts again from the master's oldest file",
    "connection_defect": "a bug was hit while serving one connection, and only that connection was "
    "closed; trace says where, please report it",
    "connection_refused": "a client violated the protocol and was closed; kind says how",
    "coordinator_back": "the coordinator answers again",
    "coordinator_lost": "the coordinator does not answer; traffic goes on, roles cannot change",
    "coordinator_refused": "the coordinator answered a request with an error",
    "coordinator_started": "the coordinator is listening",
    "coordinator_stopped": "the coordinator has stopped",
    "etcd_away": "etcd does not answer; a coordinator asks again until it does",
    "seat_lost": "this process keeps the register no longer; another may, or itself again later",
    "seat_taken": "this process holds the seat in etcd and keeps the register",
    "seat_taken_by_other": "another coordinator keeps the register; this one waits",
    "dead_letter": "messages failed for good and were copied to `%DLQ%group`, or dropped where the "
    "group keeps none; why says what happened",
    "delay_held": "a delayed message that is due cannot be delivered; it stays, its level waits "
    "behind it, and it is tried again",
    "rescue_held": "what waits in a log file that is to leave cannot be appended again; the file "
    "stays, and it is tried again",
    "rescued": "what waits in a log file that is to leave was appended again; the file can go",
    "timer_held": "a message whose time has come cannot be delivered; it stays, later ones wait "
    "behind it, and it is tried again",
    "transaction_ended": "an order has ended a transaction in its producer's place",
    "transaction_given_up": "messages of a producer group whose transaction nothing ended in time "
    "(`checks`, `keep`) were copied to a topic of their own; messages and topic say where",
    "transaction_held": "messages whose transaction is to be given up stay; it is tried again",
    "undeliverable": "delayed messages whose topic or queue was not there when they were due went "
    "to the undeliverable messages",
    "dead_letter_refused": "the copy of a dead letter was refused; the message keeps its lease and "
    "is tried again when that ends",
    "member_fenced": "a member said what became of messages after their lease had ended and others "
    "were given them: they may have been handled twice; rows counts the refused ones",
    "clock_jumped": "the wall clock leapt by seconds, ahead or back: leases stand still until it "
    "has caught up, or go on by it once it has stood for 10 s",
    "member_lost": "a member of a group said nothing for longer than its session; its leases end "
    "by time",
    "messaging_ready": "the new master has read all that it inherited and serves groups",
    "quota_reached": "a topic was sent more than its quota, records and bytes a second; what came "
    "was refused; told again after 10 s at the earliest",
    "positions_reset": "an order has set a group to other positions; leases of these queues ended",
    "share_full": "a group has too many unsettled messages of a queue; nothing new of it is handed "
    "out until some are settled",
    "crash": "the node cannot continue and stops; its store is left for recovery",
    "disk_full": "the disk is full; writes are refused until there is space",
    "dispatch_waits": "no space for queue entries on the disk; readers wait, nothing is lost",
    "index_repaired": "a file of the key index was damaged; it was repaired, or set aside and is "
    "being rebuilt; or it cannot be written, and stays behind while writes go on",
    "cut_without_copy": "unconfirmed bytes were cut without keeping a copy: there was no space for "
    "one",
    "disk_accepts": "the disk has space again; writes are accepted",
    "disk_refuses": "the disk is fuller than disk_refuse; writes are refused, reads go on",
    "fenced": "the node follows no master and writes nothing: it waits for the register",
    "following": "the node follows a master from this offset",
    "handshake_refused": "the master refused the handshake",
    "in_sync_set": "the in-sync set has changed; its members count for the confirm offset",
    "leadership_at_stop": "what a stopping master did with its leadership: handed over, or why not",
    "acknowledged_bytes_missing": "this node has less than it acknowledged: it is unclean",
    "only_copy_damaged": "a batch is damaged, and no other node is known to have it: it is "
    "refused, the rest is served",
    "quality_differs": "this node is configured with another replication.ack than its group, "
    "whose value holds",
    "newer_epoch_seen": "a member has promised a newer epoch; nothing is acknowledged until the "
    "coordinator has answered",
    "leaves_in_sync": "a member is about to leave the in-sync set; why says what it lacked",
    "log_file_leaves": "retention: the log now starts after this file",
    "log_cut": "bytes that were never confirmed were cut before following the new master",
    "master": "the node is master of a new epoch, which starts at this offset",
    "memory_not_locked": "memory that should be locked is not, so the kernel may swap it out: "
    "raise RLIMIT_MEMLOCK",
    "node_started": "the node is serving; what it found on disk and where it listens",
    "node_stopped": "the node stopped cleanly; its store is closed",
    "node_stopping": "the node is stopping: it refuses writes and completes what it has accepted",
    "odd_acknowledgement": "a slave acknowledged bytes it cannot have; its link was closed",
    "odd_frame": "another node sent a frame that violates the protocol; its link was closed",
    "master_gone": "the coordinator ended the leadership of a master that is gone; why says how it "
    "knows",
    "odd_group_state": "the coordinator sent a group state that cannot be read",
    "other_register": "the coordinator has a different register than the one this node knows",
    "own_copy_damaged": "the master found its own copy of a batch damaged",
    "quarantined": "the log is damaged below its flushed offset; nothing was cut, see twinlog log "
    "verify",
    "register_branched": "the register shows a different history for a revision this node knows",
    "register_changed": "an operation changed the register: who is master, who is in sync",
    "register_readonly": "a node reported a newer state of the register than the coordinator has; "
    "the register changes nothing more",
    "register_went_back": "the register shows an older epoch than this node has promised",
    "registered": "the coordinator gave this start of the node its session",
    "registered_elsewhere": "another process registered under this node's name",
    "retention_waits": "the disk is fuller than disk_force but the oldest file may not be deleted; "
    "why says what needs it",
    "seed_damaged": "the state sent by the master to start again with is damaged; it is requested "
    "again",
    "slaves_overtaken": "the disk was too full to keep what these members lack; they must start "
    "again",
    "slave_slow": "each confirmed write waits for this slave: it takes longer than "
    "replication.slow_slave for every acknowledgement",
    "slave_fast_again": "the slave is no longer slow, or nothing is sent that it could delay",
    "slave_left": "the link of a slave ended",
    "slave_refused": "the handshake of a slave was refused; code says why",
    "slave_streams": "a slave receives the log from this offset",
    "slept": "the process did not run for this many seconds; slaves are not blamed for the gap",
    "stepped_down": "the node is no longer master of its epoch",
    "switchover": "the master hands over to a slave",
    "switchover_over": "a switchover was given up",
    "reloaded": "SIGHUP: cluster.toml was read again and the log level taken; restart names the "
    "settings that differ and take effect when the node is started again",
    "reload_refused": "SIGHUP: cluster.toml could not be read or has mistakes; nothing was changed",
    "tasks_dumped": "SIGUSR1: every task and where it waits",
}
"""Every event name with its meaning."""


class Sink(Protocol):
    """Writes one line."""

    def msg(self, message: str) -> None:
        """Write the line."""


class _Lines:
    """Writes lines to a stream and survives its errors."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def msg(self, message: str) -> None:
        """Write one line; it is lost if the stream fails."""
        try:
            self._stream.write(message + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1

    debug = info = warning = error = msg


class Recent:
    """The newest `RECENT_KEPT` lines of a log, without facts of any length; numbered from 1."""

    def __init__(self) -> None:
        self._lines: deque[dict[str, object]] = deque(maxlen=RECENT_KEPT)
        self.newest = 0

    def add(self, name: str, level: str, seconds: float, facts: Mapping[str, object]) -> None:
        """Keep one line; of debug lines there would be one for every batch."""
        if level == "debug":
            return
        self.newest += 1
        short = {key: _brief(value) for key, value in facts.items()}
        line: dict[str, object] = {"number": self.newest, "time_ms": round(seconds * 1000)}
        self._lines.append({**line, "event": name, "level": level, "facts": short})

    def after(self, number: int) -> list[dict[str, object]]:
        """Return the lines above ``number``, oldest first; one that is gone is left out."""
        return [line for line in self._lines if cast("int", line["number"]) > number]


def _brief(value: object) -> object:
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = str(value)
    return text if len(text) <= FACT_MAX else text[: FACT_MAX - 1] + "…"


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
        self.recent = Recent()
        """The newest lines, for those who watch."""

    def set_level(self, level: str) -> None:
        """Write events of this level and above from now on."""
        self._level = LEVELS[level]

    def bind(self, **facts: object) -> None:
        """Put ``facts`` on every line from now on: role and epoch after each change."""
        self._facts.update(facts)

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
        self.recent.add(name, level, self._wall(), told)
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
