"""The directory in which a job builds what appears under its name when all of it is there.

A run builds in ``NAME.*.building`` beside its target, on the same file system, and renames that at
the end. Whatever ends it before, nothing stands under the target's name; what a killed run left
(SIGKILL) has the other name and may be removed.

Not here: what is built.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def building(target: Path) -> Generator[Path]:
    """Yield a new directory beside ``target``; at the end it is gone, renamed or removed."""
    aside = target.with_name(f"{target.name}.{uuid.uuid4().hex[:12]}.building")
    aside.mkdir(parents=True)
    try:
        yield aside
    finally:
        drop(aside)


def drop(path: Path) -> None:
    """Remove a directory though tasks may still write there; nothing is done where it is not.

    It loses its name first: tasks that were cancelled live on for a moment, and a file made while
    the directory is emptied would keep it. They must not make the directory themselves.
    """
    nameless = path.with_name(f".{path.name}.gone")
    with suppress(FileNotFoundError):
        path.rename(nameless)
    shutil.rmtree(nameless, ignore_errors=True)
