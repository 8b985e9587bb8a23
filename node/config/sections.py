"""The sections of ``cluster.toml`` as frozen models: every key, its unit, limits and reason.

They are the single source of ``docs/settings.md`` (`node.config.pages`) and of what ``config show``
lists. A key is added here only once it has an effect; a key of a later version is in ``later`` with
the sentence that refuses it.

Sizes are bytes and durations seconds (float); people write both as text with a unit. `explain`
translates pydantic's findings into terms of the file.

Not here: the sections about the log and its files (``node.config.storage_sections``), where values
come from (``node.config.sources``), combinations of keys (``node.config.config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, cast, get_args

from pydantic import Field
from pydantic_core import ErrorDetails

from node.config.section import Section
from node.config.sources import listed, nearest
from node.config.storage_sections import ArchiveSection, RetentionSection, StorageSection
from node.config.values import (
    Name,
    Port,
    Seconds,
    Size,
    SizeOrNone,
)
from twinlog.units import (
    format_duration,
    format_size,
)

KiB, MiB, GiB = 1024, 1024**2, 1024**3


class ClusterSection(Section):
    """Names that every node and client must agree on."""

    name: Name = Field(description="Shown everywhere; nodes of other clusters are refused.")
    id: str | None = Field(
        None, description="Random text that tells clusters of the same name apart."
    )
    group: Name = Field("g1", description="The replication group; a cluster has one so far.")


class NodeSection(Section):
    """One node; the table is repeated for each."""

    later: ClassVar[Mapping[str, str]] = {
        "learner": "until then: twinlog cluster add NODE --learner"
    }
    name: Name = Field(description="Its name in commands, logs and the messages of other nodes.")
    address: str = Field(description="How others reach it: an IP address or a host name.")
    data: str | None = Field(None, description="Its data folder; the default is data/NAME.")
    log_folders: Annotated[tuple[str, ...], "list of folders"] = Field(
        (),
        max_length=64,
        description="More folders for log files, on other disks. New files are created in these "
        "and in the data folder's commitlog in turn; a folder that is 85 % full, read-only or "
        "not writable is skipped and tried again.",
    )
    log_folders_closed: Annotated[tuple[str, ...], "list of folders"] = Field(
        (),
        max_length=65,
        description="Log folders, or the data folder's commitlog, in which no new files are "
        "created; retention empties them.",
    )
    role: Literal["master", "slave", "auto"] = Field(
        "auto",
        description="Used at the very first start only; afterwards the epoch history decides.",
    )
    priority: int = Field(
        100,
        ge=0,
        le=1000,
        description="The highest takes over first if several nodes are equally up to date; 0: "
        "never.",
    )


class ListenSection(Section):
    """Ports, and which interfaces they listen on."""

    clients: Port = Field(7410, description="Clients: sends, reads, administration.")
    slaves: Port = Field(7411, description="Slaves connect here while this node is master.")
    http: Port = Field(7412, description="Health, status and metrics.")
    clients_advertised: Port = Field(
        0,
        description="The port that clients see, if a proxy or a port mapping stands in front "
        "of `clients`; 0: `clients` itself.",
    )
    slaves_advertised: Port = Field(
        0, description="The same for `slaves`: where other nodes find this one."
    )
    bind: Literal["address", "all"] = Field(
        "address", description="address: only the node's own address; all: every interface."
    )
    insecure: bool = Field(
        False,
        description="Allow listening beyond loopback without [tls]; `cluster status` shows it.",
    )


class ReplicationSection(Section):
    """What an acknowledgement means and how slaves are fed."""

    acknowledge: Literal["written", "flushed", "replicated", "confirmed"] = Field(
        "confirmed", description="What a send waits for if the producer does not say."
    )
    in_sync_min: int | None = Field(
        None,
        ge=1,
        le=9,
        description="Nodes that must be in sync, including the master, or writes are refused. "
        "The default is 2, or 1 in a cluster of one. Used at the group's first start only.",
    )
    in_sync_lag_max: Seconds = Field(
        3.0,
        ge=0.1,
        le=600,
        description="A slave that has not been caught up for this long leaves the in-sync set.",
    )
    slow_slave: Seconds = Field(
        0.01,
        ge=0.0001,
        le=600,
        description="A slave in sync that takes longer than this for every acknowledgement is "
        "named as slow: each confirmed write waits for it. Raise it above the round trip between "
        "distant nodes.",
    )
    ack: Literal["received", "durable"] = Field(
        "received",
        description="When a member counts: received: in its file, survives kill -9; durable: on "
        "its disk, survives power loss.",
    )
    bytes_in_flight_max: Size = Field(
        16 * MiB,
        ge=1 * MiB,
        le=1 * GiB,
        description="Bytes sent to a slave but not yet acknowledged, at most.",
    )
    catch_up_rate: SizeOrNone = Field(
        None,
        ge=64 * KiB,
        le=16 * GiB,
        description="How many bytes a second the master sends at most to each slave that is not in "
        "sync and lacks more than bytes_in_flight_max; none: as many as the slave takes. A slave "
        "joins only if this is more than what is written.",
    )
    batch_size_max: Size = Field(
        1 * MiB,
        ge=64 * KiB,
        le=4 * MiB,
        description="Small sends are combined up to this size; one larger section is allowed.",
    )
    heartbeat: Seconds = Field(
        0.5, ge=0.05, le=60, description="How often a heartbeat is sent to each slave."
    )
    link_timeout: Seconds = Field(
        3.0, ge=0.2, le=600, description="A link without traffic for this long is closed."
    )


class CoordinatorSection(Section):
    """The process that keeps the register of who is master."""

    kind: Literal["embedded", "etcd"] = Field(
        "embedded",
        description="embedded: one small process, `twinlog coordinator start`, with a file; etcd: "
        "several such processes, one of which serves; they keep the register in etcd.",
    )
    endpoints: tuple[str, ...] = Field(
        ("127.0.0.1:7400",),
        min_length=1,
        max_length=9,
        description="Addresses it listens on: one, or with etcd that of each process.",
    )
    etcd: tuple[str, ...] = Field(
        (),
        max_length=9,
        description="With kind = etcd: client addresses of etcd's members (version 3.4 or later).",
    )
    etcd_authority: str | None = Field(
        None,
        description="File with the authority of etcd's certificates, PEM, for TLS with etcd; none: "
        "no TLS. It and the next four are relative to this file, read again at each connection.",
    )
    etcd_certificate: str | None = Field(
        None, description="File with a certificate to show to etcd, if it asks for one."
    )
    etcd_private_key: str | None = Field(
        None, description="File with its private key, without a password."
    )
    etcd_user: str | None = Field(
        None,
        description="User of etcd, where it asks; it needs a role with read and write for keys "
        "that begin with `/twinlog/`. Its gateway takes no user from a certificate.",
    )
    etcd_password_file: str | None = Field(
        None, description="File with the password of etcd_user, in its first line."
    )
    data: str = Field("data/coordinator", description="Its data folder.")


class FailoverSection(Section):
    """What happens when the master fails."""

    later: ClassVar[Mapping[str, str]] = {
        "lease": "another lease than 5 s",
        "lose_unconfirmed": "a bound for unconfirmed records",
        "lose_confirmed": "unclean elections by setting",
    }
    mode: Literal["manual", "automatic"] = Field(
        "automatic",
        description="What happens when the master is gone and a member has everything: automatic: "
        "the coordinator ends its leadership, 0.2 s after its process ended or 5 s after it was "
        "last heard, and a member takes over; manual: `twinlog cluster failover` decides. Used at "
        "the group's first start only; later: `twinlog cluster set failover`.",
    )
    after_power_loss: Literal["wait", "best"] | None = Field(
        None,
        description="When no node is known to have every confirmed record, as after a power "
        "failure of all: wait: `twinlog cluster failover` decides; best: once every node has "
        "reported, the one that has most is elected, recorded as unclean. The default is wait, "
        "or best in a cluster of one. Used at the group's first start only.",
    )


class TlsSection(Section):
    """Encryption of every port, and who is who; on where `authority` is given.

    Between nodes, and at the coordinator, both sides show a certificate of the authority; clients
    and HTTP see the node's. `twinlog certificates init` makes all of them for trying out. The files
    are read again at SIGHUP.
    """

    authority: str | None = Field(
        None, description="File with the certificate of the authority, PEM; none: no TLS."
    )
    certificate: str = Field(
        "certificates/{name}.pem",
        description="File with the certificate of a process: {name} is the node's name, "
        "`coordinator` (`coordinator-2` and so on), and `operator` for commands. It must name the "
        "address by which the process is reached.",
    )
    private_key: str = Field(
        "certificates/{name}.key", description="File with its private key, without a password."
    )
    clients: Literal["any", "certificate"] = Field(
        "any", description="Who may connect to `clients` ports: certificate: who shows one."
    )
    clients_authority: str | None = Field(
        None,
        description="File with the authority of clients' certificates, with clients = "
        "certificate. Give clients one of their own: a certificate of `authority` opens the "
        "ports of nodes and coordinator.",
    )


class AccessSection(Section):
    """Who may do what; users and rules themselves are made with `twinlog access`."""

    enabled: bool = Field(
        False, description="Ask clients who they are, and let them do what rules allow."
    )
    secret: str = Field(
        "access.secret",
        description="File with the password of `operator`, who may do everything; the same on the "
        "machines of all nodes. `twinlog access init` makes it.",
    )


class ReadSection(Section):
    """Where clients read, and how long they wait."""

    from_: Literal["any", "master", "slave"] = Field(
        "any", alias="from", description="Where clients read if they do not say."
    )
    staleness_max: Seconds = Field(
        5.0, ge=0.1, le=3600, description="A slave whose data is older refuses reads."
    )
    long_poll: Seconds = Field(
        30.0, ge=0, le=300, description="Longest time a read waits for a new record."
    )


class LimitsSection(Section):
    """Limits; a client beyond one of them is answered `busy`."""

    connections_max: int = Field(
        4096, ge=1, le=1_000_000, description="Client connections at the same time."
    )
    requests_in_flight_max: int = Field(
        4096, ge=1, le=1_000_000, description="Unanswered requests per connection."
    )
    response_size_max: Size = Field(
        8 * MiB, ge=64 * KiB, le=8 * MiB, description="Bytes of records in one answer."
    )
    producers_waiting_max: int = Field(
        10_000, ge=1, le=10_000_000, description="Sends waiting for their acknowledgement."
    )
    spin: Seconds = Field(
        0.0005,
        ge=0,
        le=0.01,
        description="How long the event loop polls for more work before it sleeps; 0 s: not at "
        "all. While messages follow each other that fast it keeps a core busy, and single sends "
        "are answered sooner.",
    )


class MessagingSection(Section):
    """Work queues: groups of consumers that share the messages of topics."""

    enabled: bool = Field(
        True,
        description="false: no group is made or served; what is stays. Delayed messages come.",
    )


class GroupsSection(Section):
    """Groups and their members; a group keeps what it was made with."""

    auto_create: bool = Field(True, description="Who joins a group first makes it.")
    session: Seconds = Field(
        10.0, ge=1, le=3600, description="A member that says nothing for this long has left."
    )
    invisible: Seconds = Field(
        60.0, ge=1, le=43_200, description="How long a message is one member's, in a new group."
    )
    attempts: int = Field(
        16, ge=1, le=10_000, description="So often is it handed out before it is a dead letter."
    )
    span_max: int = Field(
        65_536, ge=64, le=1_048_576,
        description="Messages between a queue's first unsettled one and the last handed out; "
        "beyond it and runs_max no new ones of the queue are.",
    )  # fmt: skip
    runs_max: int = Field(2048, ge=16, le=65_536, description="Stretches of one fate among them.")
    groups_max: int = Field(10_000, ge=1, le=10_000, description="Groups of a store.")
    members_max: int = Field(10_000, ge=1, le=100_000, description="Members of all groups.")
    lease: Literal["confirmed", "fast"] = Field(
        "confirmed",
        description="When messages are handed out: once that is confirmed, or at once; then a "
        "failover may hand out twice what was under way.",
    )


class TransactionsSection(Section):
    """Transactions that nothing has ended."""

    first_check: Seconds = Field(
        6.0, ge=1, le=3600,
        description="From a message's birth until producers are asked what became of its "
        "transaction; the pauses after that double, up to a minute.",
    )  # fmt: skip
    checks: int = Field(
        15, ge=1, le=1000, description="So often they are asked before it is given up."
    )
    keep: Seconds = Field(
        259_200.0, ge=60, le=31_622_400, description="What is open for this long is given up."
    )


class LogSection(Section):
    """What a node logs to stderr."""

    later: ClassVar[Mapping[str, str]] = {"output": "log files"}
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="Lowest level logged. error: needs a person now; debug: a line for every "
        "batch.",
    )
    format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto: text on a terminal, JSON elsewhere."
    )


class MetricsSection(Section):
    """Metrics for Prometheus."""

    later: ClassVar[Mapping[str, str]] = {"topics_max": "series for each topic"}
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
    "tls": TlsSection,
    "access": AccessSection,
    "read": ReadSection,
    "limits": LimitsSection,
    "messaging": MessagingSection,
    "groups": GroupsSection,
    "transactions": TransactionsSection,
    "log": LogSection,
    "metrics": MetricsSection,
}
"""Every section of the file but ``[[node]]``, in the file's order."""

NODE_SECTIONS = (
    "listen", "storage", "retention", "replication", "read", "limits", "log", "metrics",
)  # fmt: skip
"""Sections a ``[[node]]`` may repeat."""

GROUP_FACTS = frozenset({"storage.segment_size", "replication.ack", "replication.in_sync_min"})
"""Keys that are the same for every node: stored bytes and answers depend on them."""


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
    """Return pydantic's finding in terms of the file, and a hint.

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


def choices_of(annotation: object) -> tuple[str, ...]:
    """Return the texts a field may have, of a Literal or a union with one; empty for others."""
    found: list[str] = []
    for each in get_args(annotation):
        found.extend([each] if isinstance(each, str) else choices_of(each))
    return tuple(found)


def _choices(model: type[Section], key: str) -> tuple[object, ...]:
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    return choices_of(fields[key].annotation)


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
