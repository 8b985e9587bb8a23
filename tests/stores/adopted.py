"""RocketMQ's stores, adopted; and a slave of one."""

from __future__ import annotations

from pathlib import Path

from storage import Store, Token, Who
from storage.disk.disk import RealDisk
from storage.tools.adopt import Adoption, carry_out, plan_adoption
from storage.tools.recover import identity_of, index_capacity, settings_of
from tests.stores.workbench import SLAVE
from twinlog.store.reader import StoreReader

WHO = Who("adopted", "g1", "n1", 4)


def adopt(root: Path, who: Who = WHO) -> Adoption:
    """Adopt the directory; return what was planned."""
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        value = plan_adoption(reader, ours)
        end = carry_out(RealDisk(root), value, who, reader=reader, ours=ours)
    assert end > value.border
    return value


def adopted(root: Path) -> Store:
    """The adopted store, leading the epoch after the one that the adoption opened."""
    value = adopt(root)
    disk = RealDisk(root)
    who = Who("adopted", "g1", "n1", value.family)
    store = Store.open(
        disk, settings_of(identity_of(disk), index_capacity(disk)), who, wall_ms=value.timestamp
    )
    writer = Token("master", value.epoch + 1, 1)
    store.take_token(writer)
    store.append_epoch(
        writer, epoch=value.epoch + 1, node="n1", session=1, wall_ms=value.timestamp,
        reason="test", by="test",
    )  # fmt: skip
    return store


def follower(root: Path, source: Store) -> Store:
    """An empty store that may receive what ``source`` has."""
    who = Who("adopted", "g1", "n2", source.who.family)
    store = Store.open(RealDisk(root), source.settings, who, wall_ms=1)
    store.take_token(SLAVE)
    return store
