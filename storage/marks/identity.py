"""Which node a data directory belongs to.

``twinlog/identity`` (a sealed map, written once): version, cluster, group, node, store id, address
family, segment size, queue file size. All of them are fixed: opening a store under another name or
size is refused and changes nothing.

Not here: the starts of a store (`storage.marks.run`).
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.disk.packing import number, seal, text, unseal
from storage.errors import IdentityMismatch, NewerVersion
from storage.settings import StoreSettings
from twinlog.errors import CorruptionError

IDENTITY = "twinlog/identity"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Who:
    """The owner of a store: cluster, group, node.

    Attributes:
        cluster: Cluster name.
        group: Group name.
        node: Node name.
        family: Address family of the cluster's store hosts, 4 or 6.
    """

    cluster: str
    group: str
    node: str
    family: int = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of ``twinlog/identity``."""

    who: Who
    store_id: str
    segment_size: int
    queue_file_size: int
    created_ms: int


def write_identity(disk: Disk, value: Identity, op: str) -> None:
    """Write ``twinlog/identity`` durably."""
    fields: dict[str, object] = {
        "version": VERSION,
        "cluster": value.who.cluster,
        "group": value.who.group,
        "node": value.who.node,
        "family": value.who.family,
        "store": value.store_id,
        "segment_size": value.segment_size,
        "queue_file_size": value.queue_file_size,
        "created": value.created_ms,
    }
    disk.write_file(IDENTITY, seal(fields), op)


def read_identity(disk: Disk) -> Identity | None:
    """Return the directory's identity; None if it is not a twinlog store.

    Raises:
        NewerVersion: A newer twinlog made it.
        CorruptionError: The file is damaged.
    """
    if not disk.exists(IDENTITY):
        return None
    try:
        fields = unseal(disk.read(IDENTITY, "open.identity"))
        version = number(fields, "version")
        if version > VERSION:
            raise NewerVersion(
                f"the data directory has format {version}, this twinlog knows {VERSION}",
                hint="use the newer twinlog",
                found=version,
                known=VERSION,
            )
        who = Who(
            text(fields, "cluster"),
            text(fields, "group"),
            text(fields, "node"),
            number(fields, "family"),
        )
        sizes = number(fields, "segment_size"), number(fields, "queue_file_size")
        return Identity(who, text(fields, "store"), *sizes, number(fields, "created"))
    except CorruptionError as error:
        raise CorruptionError(f"{IDENTITY} is damaged: {error}", file=IDENTITY, offset=0) from None


def check_identity(found: Identity, who: Who, settings: StoreSettings) -> None:
    """Refuse a store other than the requested one.

    Raises:
        IdentityMismatch: The text names both values.
    """
    pairs: tuple[tuple[str, object, object], ...] = (
        ("cluster", found.who.cluster, who.cluster),
        ("group", found.who.group, who.group),
        ("node", found.who.node, who.node),
        ("address family", found.who.family, who.family),
        ("segment size", found.segment_size, settings.segment_size),
        ("queue file size", found.queue_file_size, settings.queue_file_size),
    )
    keys = {
        "segment size": f"segment_size = {found.segment_size}",
        "queue file size": f"queue_segment_entries = {found.queue_file_size // 20}",
    }
    for name, there, here in pairs:
        if there != here:
            same = f"; or set {keys[name]} under [storage]" if name in keys else ""
            raise IdentityMismatch(
                f"the data directory has {name} {there}, this node has {here}",
                hint=f"name the right data directory, or start with an empty one{same}",
                what=name,
                found=there,
                wanted=here,
            )
