"""Texts made from the settings: a runnable ``cluster.toml`` and the reference page.

`write_local` writes the file behind ``config init --local``, ``dev up`` and ``demo``: n full
members on loopback, ports from 7400 up (docs/decisions/0018) or 0 throughout, with a comment on
each choice. `reference` renders ``docs/settings.md`` from the section models, so the page cannot
disagree with the code; a test compares it with the file.

Not here: the models (``node.config.sections``), checking (``node.config.config``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from node.config.section import Section
from node.config.sections import (
    NODE_SECTIONS,
    SECTIONS,
    NodeSection,
    choices_of,
)
from twinlog.session.tls_files import AUTHORITY
from twinlog.units import MiB, format_duration, format_size

BASE_PORT = 7400
"""The coordinator's port; node n has this + 10 n for clients, + 1 slaves, + 2 http."""


SHARED = (
    ("hot_memory", '"128 MiB"            # how much of its log is kept in memory'),
    ("disk_clean", '"97 %"               # expired files are deleted at any time (default 75)'),
    ("disk_force", '"98 %"               # the oldest files are deleted (default 85)'),
    ("disk_refuse", '"99 %"              # writes are refused, reads go on (default 90)'),
)
"""Keys of ``[storage]``, with their comments, for nodes that share a machine: each keeps this much
of its log in memory, and a disk that is full of other files must not make it refuse writes."""


@dataclass(frozen=True, slots=True)
class Local:
    """A cluster on this machine, as `local_text` writes it."""

    nodes: int = 3
    cluster: str = "local"
    data: str = "data"
    """Folder of all data, as the file names it: relative to the file, or absolute."""
    base_port: int = BASE_PORT
    """0: every port is chosen by the system and registered."""
    segment_size: int = 64 * MiB
    failover: str = "automatic"
    """``manual``: only a command makes another node master."""
    coordinators: int = 1
    """Processes of the coordinator, on ``base_port`` and the ports after it; more than one needs
    etcd."""
    etcd: tuple[str, ...] = ()
    """Client addresses of etcd's members; empty: the coordinator keeps its register in a file."""
    tls: bool = False
    """TLS on every port, with the files that ``certificates init`` makes beside the file."""
    storage: tuple[tuple[str, str], ...] = SHARED
    """More keys of ``[storage]`` as (key, TOML value and what the file says about it)."""


def local_text(local: Local) -> str:
    """Return the text of a commented ``cluster.toml`` for ``local``.

    >>> "[[node]]" in local_text(Local(nodes=1))
    True
    """
    parts = [_HEAD.format(cluster=local.cluster)]
    for number in range(1, local.nodes + 1):
        base = local.base_port + 10 * number if local.base_port else 0
        ports = (base, base + 1, base + 2) if base else (0, 0, 0)
        parts.append(
            _NODE.format(
                name=f"n{number}",
                data=f"{local.data}/n{number}",
                role="master" if number == 1 else "slave",
                priority=110 - 10 * number if number < 11 else 1,
                clients=ports[0],
                slaves=ports[1],
                http=ports[2],
                why=_ROLE_WHY if number == 1 else "",
            )
        )
    more = "".join(f"{key} = {value}\n" for key, value in local.storage)
    parts.append(
        _TAIL.format(
            segment_size=format_size(local.segment_size),
            storage=more,
            in_sync_min=min(2, local.nodes),
            failover=local.failover,
            coordinator=_coordinator(local),
            data=f"{local.data}/coordinator",
        )
    )
    if local.tls:
        parts.append(TLS_LINES.format(authority=AUTHORITY))
    return "".join(parts)


def _coordinator(local: Local) -> str:
    """Return the file's lines about the kind of coordinator and its addresses."""
    ports = [local.base_port + n if local.base_port else 0 for n in range(local.coordinators)]
    endpoints = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    if not local.etcd:
        start = "# `twinlog coordinator start`"
        return f'kind = "embedded"                 {start}\nendpoints = [{endpoints}]'
    members = ", ".join(f'"{one}"' for one in local.etcd)
    start = "# `twinlog coordinator start --number 1`, 2, ..."
    return (
        f'kind = "etcd"                     {start}\nendpoints = [{endpoints}]\netcd = [{members}]'
    )


def write_local(path: Path, local: Local | None = None) -> None:
    """Write `local_text` to ``path``.

    Raises:
        FileExistsError: There is a file already; it is not touched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(local_text(local or Local()))


_ROLE_WHY = "             # at the very first start only; afterwards the history decides"

_HEAD = """\
# A twinlog cluster. Every key with unit, limits and meaning: docs/settings.md, or
# `twinlog config show`. Check an edit with `twinlog config check`.

[cluster]
name = "{cluster}"                  # nodes of other clusters are refused

# One table for each node; `twinlog node start n1` picks its own by name. Port 0 lets the system
# choose; others find the node through the coordinator.
"""

_NODE = """
[[node]]
name = "{name}"
address = "127.0.0.1"             # how others reach it
data = "{data}"
role = "{role}"{why}
priority = {priority}
[node.listen]
clients = {clients}
slaves = {slaves}
http = {http}                       # a page for browsers, /readyz /metrics ...
"""

_TAIL = """
[storage]
segment_size = "{segment_size}"           # size of a log file, allocated in advance
flush = "async"                   # "sync": every acknowledgement waits for the disk
key_index_slots = 100000          # small files of the key index, 8.4 MB; the default is 420 MB
key_index_cells = 400000
{storage}
[replication]
acknowledge = "confirmed"         # what a send waits for by default
in_sync_min = {in_sync_min}                   # writes are refused if fewer are in sync
ack = "received"                  # "durable": a member counts once its disk has the bytes

[coordinator]
{coordinator}
data = "{data}"

[failover]
mode = "{failover}"               # "manual": `twinlog cluster failover` decides
after_power_loss = "best"         # all lost power: the most complete node is elected
"""


TLS_LINES = """
[tls]
authority = "{authority}"   # every port speaks TLS; see `twinlog certificates init`
"""


def reference() -> str:
    """Return the page ``docs/settings.md``: every key with type, unit, default, limits, reason."""
    parts = [_REFERENCE_HEAD, _section_page("[[node]]", NodeSection)]
    parts.extend(_section_page(f"[{name}]", section) for name, section in SECTIONS.items())
    repeat = ", ".join(f"`[node.{name}]`" for name in NODE_SECTIONS)
    parts.append(f"## Sections that a node may override\n\n{repeat}\n")
    return "".join(parts)


_REFERENCE_HEAD = """\
# Settings

One file, `cluster.toml`, describes the whole cluster and is the same on every machine.

A value is taken from a flag (`--set storage.flush=sync`), else from the environment
(`TWINLOG_STORAGE_FLUSH=sync`, scalars only), else from the file, else from the defaults below.
`twinlog config show` says from which. Sizes are binary (`64 MiB`), durations have units (`500 ms`).
Relative paths are relative to the file. A node may differ in some sections: `[node.storage]`
inside its `[[node]]`. Unknown keys are refused. Changes take effect at the next start.

"""


def _section_page(title: str, section: type[Section]) -> str:
    about = (section.__doc__ or "").strip()
    lines = [
        f"## {title}",
        "",
        about,
        "",
        "| key | value | default | meaning |",
        "|---|---|---|---|",
    ]
    for field, info in section.model_fields.items():
        value = _kind(info)
        key = info.alias or field
        lines.append(f"| `{key}` | {value} | {_default(info)} | {info.description} |")
    if section.later:
        lines += ["", "Refused until they are implemented:"]
        lines += [f"* `{key}`: {what}" for key, what in section.later.items()]
    return "\n".join([*lines, "", ""])


def _kind(info: FieldInfo) -> str:
    """Return what may be written: the choices, or the unit and the limits."""
    choices = choices_of(info.annotation)
    if choices:
        return " \\| ".join(f"`{choice}`" for choice in choices)
    words = [word for word in info.metadata if isinstance(word, str)]
    kind = words[0] if words else _type_name(info)
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    if low is None or high is None or "port" in kind:
        return kind
    return f"{kind}, {shown(low, kind)} to {shown(high, kind)}"


def _type_name(info: FieldInfo) -> str:
    annotation = str(info.annotation)
    for name, text in (
        ("bool", "true or false"),
        ("int", "number"),
        ("tuple", "list of HOST:PORT"),
    ):
        if name in annotation:
            return text
    return "text"


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    words = [word for word in info.metadata if isinstance(word, str)]
    if info.default == ():
        return "-"
    if info.default is None:
        return "`none`" if words and words[0].endswith("or none") else "-"
    return f"`{shown(info.default, words[0] if words else '')}`"


def shown(value: object, kind: str = "") -> str:
    """Return a value as the file writes it, without quotes; ``kind``: size, duration or other."""
    if kind.startswith("size") and isinstance(value, int):
        return format_size(value)
    if kind.startswith("duration") and isinstance(value, (int, float)):
        return format_duration(float(value))
    if kind.startswith("share") and isinstance(value, (int, float)):
        return f"{value * 100:.0f} %"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)  # pyright: ignore
    return str(value)
