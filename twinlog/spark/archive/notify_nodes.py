"""Notifies nodes of archived segments, so that retention may delete their log files.

A node durably keeps one log offset, below which everything is archived
(``storage.marks.archive_mark``). It accepts a part only if its own bytes have the SHA-256 in the
manifest, so an archive of other bytes cannot make it delete anything. Parts are sent one by one,
without a gap from the node's mark on; parts below the mark are not hashed again. A node that is
away, busy or lagging is notified by the next run.

A node accepts one archive, by its id; it refuses orders of another one, unless that one replaces
it: then all parts from the start of the log on are sent. The archive's own files are checked first
(`twinlog.spark.archive.integrity`): the marks of all nodes are read before, to know which segments
are new to a node.

Not here: what a node may delete then (``storage.retention.policy``, ``retention.archive``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import cast

from twinlog.errors import TwinlogError
from twinlog.spark.archive.manifest import Manifest, Segment
from twinlog.spark.errors import SourceUnavailable
from twinlog.spark.nodes.nodes import NodeAccess, Nodes
from twinlog.units import MiB
from twinlog.wire.frames import Frame, Type

ORDER_SECONDS = 30.0
"""Time-out in addition to the hashing: a node finishes its running job first."""
HASH_RATE = 50 * MiB
"""Bytes per second that a node hashes at least, from a slow disk."""
STATUS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Notified:
    """The result of notifying one node.

    Attributes:
        node: Its name.
        archived: Its mark now; None: unknown.
        state: ``told``, or why its mark is below the archive's end.
        differs: Its bytes are not those of the archive.
        other: Another archive counts there.
    """

    node: str
    archived: int | None
    state: str
    differs: bool = False
    other: bool = False


Namable = Callable[[Sequence[Segment], int], Sequence[Segment]]
"""From a group's segments and the offset below which all nodes were notified, the intact ones."""


def notify(
    servers: Sequence[str],
    group: str,
    manifest: Manifest,
    namable: Namable,
    newest: Callable[[], Manifest],
    *,
    replace: bool = False,
) -> list[Notified]:
    """Notify every node of a cluster of the archived segments of its group; [] without servers.

    A node that cannot be notified is not an error: it is in the result. So are addresses that do
    not answer.

    Args:
        servers: Addresses of any nodes.
        group: Group of the archive.
        manifest: The archive's manifest.
        namable: Checks the files and returns the intact segments (`ArchiveIntegrity.namable`).
        newest: Returns the newest manifest: another run may have notified nodes meanwhile.
        replace: This archive replaces the one that the nodes accept so far.

    Raises:
        CorruptionError: They are of another cluster than the archive.
    """
    if not servers:
        return []
    try:
        nodes = Nodes(NodeAccess(tuple(servers), "any", 0.0))
    except SourceUnavailable as error:
        return [Notified(", ".join(servers), None, error.text)]
    try:
        if nodes.route.group != group:
            text = f"belongs to the group {nodes.route.group}, the archive's is {group}"
            return [Notified(name, None, text) for name in nodes.order()]
        manifest.require(nodes.route.cluster, "the nodes are of")
        if not manifest.id:
            text = "not notified: the archive has no id yet and gets one with its next segment"
            return [Notified(name, None, text) for name in nodes.order()]
        order = _Order(manifest.id, replace)
        known = [_known(nodes, name, order) for name in nodes.order()]
        above = min((one.needs for one in known if isinstance(one, _Known)), default=None)
        if above is None:
            return [one for one in known if isinstance(one, Notified)]
        segments = manifest.of_group(group)
        named = namable(segments, above)
        whole = len(named) == len(segments)
        told = [
            one if isinstance(one, Notified) else _told(nodes, one, order, named, whole)
            for one in known
        ]
        return _beyond(told, group, manifest, newest)
    finally:
        nodes.close()


@dataclass(frozen=True, slots=True)
class _Order:
    """The archive that sends the order, and whether it replaces another one."""

    archive: str
    replace: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """A node's mark for this archive, and the start of its log."""

    node: str
    mark: int
    start: int

    @property
    def needs(self) -> int:
        """Log offset from which parts are new to it."""
        return max(self.mark, self.start)


def _known(nodes: Nodes, name: str, order: _Order) -> _Known | Notified:
    try:
        status = nodes.order_to(name, Type.STATUS, {}, timeout=STATUS_SECONDS)
    except TwinlogError as error:
        return Notified(name, None, error.text)
    mark, held = _number(status, "retention", "archived"), _archive(status)
    if mark and held != order.archive:
        if not order.replace:
            text = f"another archive counts here ({held or 'without an id'}), --replace ends that"
            return Notified(name, mark, text, other=True)
        mark = 0
    return _Known(name, mark, _number(status, "offsets", "start"))


def _told(
    nodes: Nodes, known: _Known, order: _Order, segments: Sequence[Segment], whole: bool
) -> Notified:
    name, mark = known.node, known.mark
    try:
        for segment in segments:
            if segment.end <= max(mark, known.start):
                continue
            fields: dict[str, object] = {
                "op": "archived",
                "parts": [[segment.base, segment.end, segment.sha256]],
                "archive": order.archive,
                "replace": order.replace,
            }
            seconds = ORDER_SECONDS + (segment.end - segment.base) / HASH_RATE
            nodes.order_to(name, Type.ADMIN, fields, timeout=seconds)
            mark = segment.end
    except TwinlogError as error:
        return Notified(name, mark, error.text, error.code == "archive" and "differs" in error.text)
    return Notified(name, mark, "told" if whole else "notified of the segments before the damage")


def _beyond(
    told: Sequence[Notified], group: str, manifest: Manifest, newest: Callable[[], Manifest]
) -> list[Notified]:
    """Return the results; a mark beyond the end of its own archive is not reported as ``told``.

    Then the archive's directory is older than the notifications, as after a restore from a copy:
    the records between may exist nowhere any more.
    """

    def end(found: Manifest) -> int:
        return max((segment.end for segment in found.of_group(group)), default=0)

    def lost(one: Notified) -> bool:
        return not one.other and one.archived is not None and one.archived > have

    have = end(manifest)
    if any(map(lost, told)):
        have = end(newest())
    return [
        changed(
            one,
            state=f"was notified of offsets up to {one.archived}, the archive now ends at {have}",
            differs=True,
        )
        if lost(one)
        else one
        for one in told
    ]


def _archive(status: Frame) -> str:
    fields = cast("dict[str, object]", status.fields.get("retention") or {})
    value = fields.get("archive")
    return value if isinstance(value, str) else ""


def _number(status: Frame, part: str, name: str) -> int:
    fields = cast("dict[str, object]", status.fields.get(part) or {})
    value = fields.get(name)
    return value if isinstance(value, int) else 0
