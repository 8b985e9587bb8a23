"""A small twinlog store that was never stopped: the engine's own, with one epoch."""

from __future__ import annotations

from pathlib import Path

from storage import Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk

WHO = Who("c", "g1", "n1", 4)
SETTINGS = StoreSettings(segment_size=16384, queue_segment_entries=50)


def killed(root: Path) -> Store:
    """Open a store with one epoch and leave it unstopped."""
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=1)
    token = Token("master", 1, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=1, node="n1", session=1, wall_ms=1, reason="t", by="t")
    return store
