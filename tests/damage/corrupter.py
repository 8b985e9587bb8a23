"""Damages one file of a store, from a seed.

Not here: what must come of it (`tests.damage.judge`).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.fakes.disk import FakeDisk

PAGE = 512
KINDS: dict[str, tuple[str, ...]] = {
    "log": ("commitlog/",),
    "batch index": ("twinlog/batches/",),
    "queue": ("consumequeue/",),
    "batch queue": ("batchconsumequeue/",),
    "key index": ("index/",),
    "checkpoint": ("twinlog/checkpoint", "checkpoint"),
    "epochs": ("epochFileCheckpoint",),
    "snapshot": ("twinlog/state/",),
    "config": ("config/",),
    "marks": ("twinlog/identity", "twinlog/run", "twinlog/clean", "twinlog/promise", "abort"),
}
"""Kinds of files, by the beginnings of their paths."""

WAYS = ("flip", "zero", "swap", "truncate", "delete")


@dataclass(frozen=True)
class Hurt:
    """What was done.

    Attributes:
        kind: Kind of the file.
        way: One of `WAYS`.
        path: The file.
        at: First byte changed.
        before: The file as it was; None where it stayed the same.
    """

    kind: str
    way: str
    path: str
    at: int
    before: bytes | None


def files(disk: FakeDisk, folder: str = "") -> list[str]:
    """Every file of the store, sorted."""
    found: list[str] = []
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        if disk.peek(path) is None:
            found += files(disk, path)
        else:
            found.append(path)
    return found


def hurt(disk: FakeDisk, seed: int) -> Hurt:
    """Damage one file: kinds and ways take turns, the rest is drawn."""
    kinds = list(KINDS)
    kind, way = kinds[seed % len(kinds)], WAYS[seed // len(kinds) % len(WAYS)]
    rng = Random(seed)
    path = rng.choice([one for one in files(disk) if one.startswith(KINDS[kind])])
    return hurt_file(disk, kind, way, path, rng)


def hurt_file(disk: FakeDisk, kind: str, way: str, path: str, rng: Random) -> Hurt:
    """Damage ``path``, which is a file of ``kind``, in one of `WAYS`."""
    data = disk.peek(path)
    assert data is not None
    before, at = bytes(data), 0
    match way:
        case "delete":
            disk.remove(path, "damage")
        case "truncate":
            at = rng.randrange(len(before)) if before else 0
            del data[at:]
        case "flip":
            # mostly where something was written: the rest of a file is zeros
            at = rng.randrange(len(before.rstrip(b"\0")) or 1) if before else 0
            if before:
                data[at] ^= 1 << rng.randrange(8)
        case "zero":
            at = rng.randrange(-(-len(before) // PAGE) or 1) * PAGE
            data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))
        case _:
            at = _swap(data, rng)
    after = disk.peek(path)
    same = after is not None and bytes(after) == before
    return Hurt(kind, way, path, at, None if same else before)


def _swap(data: bytearray, rng: Random) -> int:
    """Exchange two pages of the file; halves of a file of one page."""
    size = PAGE if len(data) >= 2 * PAGE else max(len(data) // 2, 1)
    pages = len(data) // size
    if pages < 2:
        return 0
    first, second = sorted(rng.sample(range(pages), 2))
    one, two = first * size, second * size
    data[one : one + size], data[two : two + size] = (
        data[two : two + size],
        data[one : one + size],
    )
    return one
