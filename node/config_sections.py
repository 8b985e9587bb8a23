"""The sections of ``cluster.toml`` as frozen models: every key, its unit, limits and reason.

They are the single source of ``docs/settings.md`` (`node.config_pages`) and of what ``config show``
lists. A key stands here only once it does something; a key of a later version stands in ``later``
with the sentence that refuses it.

Sizes are bytes and durations seconds (float); people write both as text with a unit. `explain`
turns what pydantic finds into the words of somebody who edits the file.

This module and ``node.config`` are the only ones that know pydantic. Not here: where values come
from (``node.config_sources``), what several keys say together (``node.config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import ErrorDetails, PydanticCustomError

from node.config_sources import listed, nearest
from twinlog.units import (
    UnitError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    parse_whole,
)

KiB, MiB, GiB = 1024, 1024**2, 1024**3


def _size(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except UnitError as error:
            text = f'"{value}", which is not a size'
            raise PydanticCustomError("unit", "{what}", {"what": text, "hint": _hint(error)}) from (
                error
            )
    return value


def _seconds(value: object) -> object:
    if isinstance(value, (str, int, float)):
        try:
            return parse_duration(str(value))
        except UnitError as error:
            text = f'"{value}", which is not a duration'
            raise PydanticCustomError("unit", "{what}", {"what": text, "hint": _hint(error)}) from (
                error
            )
    return value


def _hint(error: UnitError) -> str:
    return error.hint


def _size_or_none(value: object) -> object:
    return None if value == "none" else _size(value)


def _seconds_or_none(value: object) -> object:
    return None if value == "none" else _seconds(value)


def _share(value: object) -> object:
    """Read ``75 %``; only so written, because 0.75 and 75 would both look right."""
    text, _, rest = str(value).partition("%")
    number = parse_whole(text.strip())
    if isinstance(value, str) and "%" in value and not rest and number is not None:
        return number / 100
    text = f'"{value}", which is not a share of the disk'
    hint = 'write it like "75 %"'
    raise PydanticCustomError("unit", "{what}", {"what": text, "hint": hint})


def _hours(value: object) -> object:
    """Read ``any time`` or hours such as ``04:00`` or ``04:00;16:00``."""
    if value == "any time":
        return value
    parts = [part.strip() for part in str(value).split(";")]
    hours = [part[:2] for part in parts if len(part) == 5 and part[2:] == ":00"]
    if len(hours) == len(parts) and all(parse_whole(hour) in range(24) for hour in hours):
        return "; ".join(parts)
    text = f'"{value}", which is not an hour of day'
    hint = 'write it like "04:00", "04:00; 16:00" or "any time"'
    raise PydanticCustomError("unit", "{what}", {"what": text, "hint": hint})


Size = Annotated[int, BeforeValidator(_size), "size"]
SizeOrNone = Annotated[int | None, BeforeValidator(_size_or_none), "size or none"]
SecondsOrNone = Annotated[float | None, BeforeValidator(_seconds_or_none), "duration or none"]
Share = Annotated[float, BeforeValidator(_share), "share of the disk"]
Hours = Annotated[str, BeforeValidator(_hours), "full hours, or any time"]
Seconds = Annotated[float, BeforeValidator(_seconds), "duration"]
Port = Annotated[int, Field(ge=0, le=65535), "port, 0: the system chooses"]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""What a cluster, a group and a node may be called."""
Name = Annotated[str, Field(pattern=NAME)]


class Section(BaseModel):
    """One table of the file. Frozen; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)
    later: ClassVar[Mapping[str, str]] = {}
    """Keys, or ``key=value``, of a later version: what they will do."""


class ClusterSection(Section):
    """Names that every node and client must agree on."""

    name: Name = Field(description="Shown everywhere; nodes of another cluster are refused.")
    id: str | None = Field(
        None, description="Random text that keeps data folders of equally named clusters apart."
    )
    group: Name = Field("g1", description="The replication group; one for each cluster so far.")


class NodeSection(Section):
    """One node; the table is repeated for each."""

    later = {"learner": "nodes that copy and never count"}
    name: Name = Field(description="How commands, logs and other nodes call it.")
    address: str = Field(description="What others use to reach it: an IP address or a host name.")
    data: str | None = Field(None, description="Its data folder; the default is data/NAME.")
    log_folders: Annotated[tuple[str, ...], "list of folders"] = Field(
        (),
        max_length=64,
        description="More folders for log files, on other disks; they take turns with the data "
        "folder's commitlog, and one that is 85 % full is passed over.",
    )
    log_folders_closed: Annotated[tuple[str, ...], "list of folders"] = Field(
        (),
        max_length=65,
        description="Those of them, or the data folder's commitlog, that take no new files; "
        "retention empties them.",
    )
    role: Literal["master", "slave", "auto"] = Field(
        "auto", description="At its very first start only; afterwards the epoch history decides."
    )
    priority: int = Field(
        100, ge=0, le=1000, description="Who takes over first among equals; 0: never."
    )


class ListenSection(Section):
    """Ports and who may reach them."""

    clients: Port = Field(7410, description="Clients: sends, reads, administration.")
    slaves: Port = Field(7411, description="Slaves connect here while this node is master.")
    http: Port = Field(7412, description="Health, status and metrics.")
    bind: Literal["address", "all"] = Field(
        "address", description="address: only the node's own; all: every interface."
    )
    insecure: bool = Field(
        False, description="Allow listening beyond loopback although nothing is encrypted yet."
    )


class StorageSection(Section):
    """The log and its files."""

    segment_size: Size = Field(
        1 * GiB,
        ge=64 * KiB,
        le=2 * GiB - 4096,
        multiple_of=4096,
        description="One file of the log; RocketMQ's default. A fact of the whole group, written "
        "when a store is created.",
    )
    flush: Literal["sync", "async", "async-buffered"] = Field(
        "async",
        description="sync: every acknowledgement waits for the disk. async: the disk follows. "
        "async-buffered: a master appends to a memory pool first and the file follows; the least "
        "durable: `written` answers from memory, says `buffered`, and a killed process loses it.",
    )
    flush_timeout: Seconds = Field(
        5.0,
        ge=0.1,
        le=600,
        description="How long a `flushed` send waits for the disk; then the answer is "
        '"stored, not known flushed".',
    )
    flush_interval: Seconds = Field(
        0.5, ge=0.01, le=60, description="async: how long bytes stay unflushed under load."
    )
    hot_memory: Size | None = Field(
        None,
        ge=64 * MiB,
        le=1024 * GiB,
        description="Log behind its end that is taken to be in memory; what lies further back and "
        "is flushed leaves memory, and a master sends its readers to a slave. The default is 40 % "
        "of the machine's memory, as in RocketMQ; less when several nodes share a machine.",
    )
    warm: bool = Field(
        False,
        description="Make the whole next file present in memory, not only the pages that the "
        "writer needs next: no page is fetched under load, a file of memory is taken early.",
    )
    lock_memory: bool = Field(
        False,
        description="Lock the pages ahead of the writer in memory. Beyond what RLIMIT_MEMLOCK "
        "allows the node goes on without, warns once and counts the bytes.",
    )
    flush_on_write: bool = Field(
        False,
        description="async: flush as soon as 4 pages are dirty, not at a fixed rate; RocketMQ's "
        "`flushCommitLogTimed=false`.",
    )
    buffer_pool: Size = Field(
        64 * MiB,
        ge=1 * MiB,
        le=16 * GiB,
        multiple_of=4096,
        description="async-buffered: memory for batches before they are in the file, locked if "
        "RLIMIT_MEMLOCK allows it. When it is full, batches go straight into the file.",
    )
    commit_interval: Seconds = Field(
        0.2,
        ge=0.01,
        le=60,
        description="async-buffered: how long batches stay only in memory; 4 pages go at once.",
    )
    message_size_max: Size = Field(
        4 * MiB, ge=1 * KiB, le=4 * MiB, description="Body of one message; RocketMQ's limit."
    )
    queue_segment_entries: int = Field(
        300_000, ge=64, le=10_000_000, description="Entries of 20 bytes in one consume-queue file."
    )
    key_index: bool = Field(
        True, description="Keep the index that finds messages by key or unique id."
    )
    key_index_slots: int = Field(
        5_000_000,
        ge=16,
        le=50_000_000,
        description="Hash slots of a new index file, RocketMQ's default; each takes 4 bytes of "
        "memory.",
    )
    key_index_cells: int = Field(
        20_000_000,
        ge=64,
        le=100_000_000,
        description="Keys that fit into a new index file, 20 bytes of disk each; four for each "
        "slot, so that any reader can tell both from the file's length.",
    )
    disk_clean: Share = Field(
        0.75, ge=0.01, le=1, description="Used: files that are expired go at any hour."
    )
    disk_force: Share = Field(
        0.85, ge=0.01, le=1, description="Used: the oldest files go whatever their age."
    )
    disk_refuse: Share = Field(
        0.90, ge=0.01, le=1, description="Used: writes are refused, reads go on."
    )


class RetentionSection(Section):
    """What goes, and when. Nothing above the older state snapshot ever does."""

    keep: SecondsOrNone = Field(
        72 * 3600.0,
        ge=1,
        description="A log file whose newest record is older may go; none: age is no reason.",
    )
    keep_bytes: SizeOrNone = Field(
        None, ge=64 * KiB, description="The oldest files of a longer log may go; none: no limit."
    )
    delete_at: Hours = Field(
        "04:00", description="The hours of day, by the node's clock, in which files go that may."
    )
    archive: bool = Field(
        False,
        description="Only what an archive has proven to have goes, a full disk notwithstanding.",
    )
    erase: bool = Field(
        False,
        description="Files are overwritten with zeros before they go. A solid-state disk, a file "
        "system that copies on write, a snapshot or a backup may keep the old bytes all the same: "
        "where that matters, encrypt the disk.",
    )
    look: Seconds = Field(
        10.0,
        ge=0.1,
        le=3600,
        description="How often to look whether a file may go, and how full the disk is.",
    )
    pause: Seconds = Field(0.1, ge=0, le=3600, description="Between two files that go.")
    hold: Seconds = Field(
        120.0,
        ge=0,
        le=86400,
        description="A file waits so long for readers that hold it; then its name goes, and they "
        "keep its bytes until they let go.",
    )
    wait_for_slaves: Seconds = Field(
        3600.0,
        ge=0,
        le=30 * 86400,
        description="What a slave lacks is kept so long after it was last heard.",
    )
    keep_cut: Seconds = Field(
        7 * 86400.0,
        ge=0,
        le=365 * 86400,
        description="Unconfirmed bytes that a new master never had are kept aside so long.",
    )


class ArchiveSection(Section):
    """What `twinlog spark archive --follow` does with the sealed files of the log."""

    every: Seconds = Field(
        600.0, ge=1, le=30 * 86400, description="Between the end of a run and the next one."
    )
    to: str = Field(
        "", description="Directory of the archive; empty: the command names it with `--to`."
    )


class ReplicationSection(Section):
    """What an acknowledgement means and how slaves are fed."""

    acknowledge: Literal["written", "flushed", "replicated", "confirmed"] = Field(
        "confirmed", description="Default of producers that ask for nothing."
    )
    in_sync_min: int | None = Field(
        None,
        ge=1,
        le=9,
        description="Nodes that must be in sync, the master included; fewer: writes are refused. "
        "The default is 2, or 1 in a cluster of one. Used at the group's first start only.",
    )
    in_sync_lag_max: Seconds = Field(
        3.0, ge=0.1, le=600, description="A slave not caught up for so long leaves the in-sync set."
    )
    ack: Literal["received", "durable"] = Field(
        "received",
        description="When a member counts: received: in its file, survives kill -9; durable: on "
        "its disk, survives power loss.",
    )
    bytes_in_flight_max: Size = Field(
        16 * MiB, ge=1 * MiB, le=1 * GiB, description="Sent to a slave ahead of its answers."
    )
    batch_size_max: Size = Field(
        1 * MiB,
        ge=64 * KiB,
        le=4 * MiB,
        description="Small sends are joined up to this size; one larger section is allowed.",
    )
    heartbeat: Seconds = Field(0.5, ge=0.05, le=60, description="A word to each slave at least.")
    link_timeout: Seconds = Field(
        3.0, ge=0.2, le=600, description="A silent link is closed after so long."
    )


class CoordinatorSection(Section):
    """Who keeps the register that says who is master."""

    later = {"kind=etcd": "an etcd cluster as coordinator"}
    kind: Literal["embedded"] = Field(
        "embedded", description="embedded: a small process, `twinlog coordinator start`."
    )
    endpoints: tuple[str, ...] = Field(
        ("127.0.0.1:7400",), min_length=1, max_length=9, description="Where it listens."
    )
    data: str = Field("data/coordinator", description="Its data folder.")


class FailoverSection(Section):
    """What happens when the master is gone."""

    later = {
        "mode=automatic": "failover without a command",
        "lease": "leases",
        "lose_unconfirmed": "automatic failover",
        "after_power_loss": "electing by itself after power loss",
        "lose_confirmed": "unclean elections by setting",
    }
    mode: Literal["manual"] = Field(
        "manual", description="manual: `twinlog cluster failover` decides."
    )


class ReadSection(Section):
    """Where clients read and how long they wait."""

    from_: Literal["any", "master", "slave"] = Field(
        "any", alias="from", description="Default of clients that ask for nothing."
    )
    staleness_max: Seconds = Field(
        5.0, ge=0.1, le=3600, description="A slave further behind is not ready for readers."
    )
    long_poll: Seconds = Field(
        30.0, ge=0, le=300, description="The longest a read waits for a new record."
    )


class LimitsSection(Section):
    """Everything has a limit; beyond it clients are told `busy`."""

    connections_max: int = Field(
        4096, ge=1, le=1_000_000, description="Client connections at a time."
    )
    requests_in_flight_max: int = Field(
        4096, ge=1, le=1_000_000, description="Unanswered requests of one connection."
    )
    response_size_max: Size = Field(
        8 * MiB, ge=64 * KiB, le=8 * MiB, description="Records in one answer."
    )
    producers_waiting_max: int = Field(
        10_000, ge=1, le=10_000_000, description="Sends that wait for their acknowledgement."
    )
    spin: Seconds = Field(
        0.0005,
        ge=0,
        le=0.01,
        description="How long a node that was just served looks for more before it sleeps; 0 s: "
        "it sleeps at once. While messages follow each other that fast it keeps a core busy, and "
        "single sends are answered sooner.",
    )


class LogSection(Section):
    """What a node tells on stderr."""

    later = {"output": "log files"}
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="error: needs a person now; debug: one line for each batch."
    )
    format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto: text on a terminal, JSON elsewhere."
    )


class MetricsSection(Section):
    """Figures for Prometheus."""

    later = {"topics_max": "series for each topic"}
    enabled: bool = Field(True, description="Serve /metrics on the http port.")


SECTIONS: Mapping[str, type[Section]] = {
    "cluster": ClusterSection,
    "listen": ListenSection,
    "storage": StorageSection,
    "retention": RetentionSection,
    "archive": ArchiveSection,
    "replication": ReplicationSection,
    "coordinator": CoordinatorSection,
    "failover": FailoverSection,
    "read": ReadSection,
    "limits": LimitsSection,
    "log": LogSection,
    "metrics": MetricsSection,
}
"""Every section of the file but ``[[node]]``, in the file's order."""

LATER_SECTIONS: Mapping[str, str] = {
    "tls": "encryption",
    "access": "tokens and rights",
    "dashboard": "the dashboard",
}

NODE_SECTIONS = (
    "listen", "storage", "retention", "replication", "read", "limits", "log", "metrics",
)  # fmt: skip
"""Sections a ``[[node]]`` may repeat."""

GROUP_FACTS = frozenset({"storage.segment_size", "replication.ack", "replication.in_sync_min"})
"""Keys that are the same for every node: they decide what stored bytes and answers mean."""


def keys_of(section: type[Section]) -> tuple[str, ...]:
    """Return the section's keys as the file writes them (``from``, not ``from_``)."""
    return tuple(info.alias or name for name, info in section.model_fields.items())


def later_sentence(model: type[Section], key: str, value: object) -> str | None:
    """Return the sentence for a key or value that only a later version knows."""
    if key in model.later:
        return f"{key} comes with a later version ({model.later[key]})"
    what = model.later.get(f"{key}={value}")
    return None if what is None else f'{key} = "{value}" comes with a later version ({what})'


def explain(
    model: type[Section], title: str, key: str, detail: ErrorDetails, value: object
) -> tuple[str, str | None]:
    """Return pydantic's finding in the words of somebody who edits the file, and a hint.

    ``value`` is what was written, before any unit was read.
    """
    context = cast(dict[str, object], detail.get("ctx", {}))
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    match detail["type"]:
        case "extra_forbidden":
            known = keys_of(model)
            hint = nearest(key, known) or f"the keys are {listed(known, 'and')}"
            return f'{title} has no key "{key}"', hint
        case "missing":
            return f"{title} needs {key}", None
        case "unit":
            return f"{key} is {context['what']}", str(context["hint"])
        case "literal_error":
            choices = [str(choice) for choice in _choices(model, key)]
            near = nearest(str(value), choices)
            if len(choices) == 1:
                return f"{key} is {shown}; it can only be {choices[0]}", near
            return f"{key} is {shown}; it can be {listed(choices)}", near
        case "greater_than_equal" | "less_than_equal":
            bound = context.get("ge", context.get("le"))
            side = "at least" if "ge" in context else "at most"
            return f"{key} is {shown}; it must be {side} {_unit(model, key, bound)}", None
        case "multiple_of":
            return f"{key} is {shown}; it must be a multiple of {context['multiple_of']}", None
        case "string_pattern_mismatch":
            return f"{key} is {shown}, which is not a name", NAME_HINT
        case "tuple_type":
            hint = 'write it like ["127.0.0.1:7400"], in the file'
            return f"{key} is {shown}; it is a list", hint
        case kind:
            wanted = next((word for start, word in _KINDS if kind.startswith(start)), "a value")
            return f"{key} is {shown}; it must be {wanted}", None


NAME_HINT = "use letters, digits, dot, dash and underscore, at most 63"
_KINDS = (
    ("int", "a whole number"),
    ("bool", "true or false"),
    ("float", 'a duration, such as "500 ms"'),
    ("string", "a text in quotes"),
)


def _choices(model: type[Section], key: str) -> tuple[object, ...]:
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    return get_args(fields[key].annotation)


def _unit(model: type[Section], key: str, bound: object) -> str:
    """Return a limit as the file would write it."""
    info = model.model_fields.get(key)
    metadata = info.metadata if info is not None else []
    words = " ".join(word for word in metadata if isinstance(word, str))
    if words.startswith("size") and isinstance(bound, int):
        return format_size(bound)
    if words.startswith("duration") and isinstance(bound, (int, float)):
        return format_duration(float(bound))
    if words.startswith("share") and isinstance(bound, (int, float)):
        return f"{bound * 100:.0f} %"
    return str(bound)
