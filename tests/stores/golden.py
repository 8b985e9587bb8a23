"""Golden stores: directories that RocketMQ 5.3.3 wrote, and what it reads from them itself.

``stores/CASE.tar.gz`` holds one store (case 12: two), ``stores/CASE.json.xz`` what RocketMQ found
in a copy after its own recovery. Archives are unpacked with their holes.

Not here: what must be equal (the tests).
"""

from __future__ import annotations

import functools
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

CONSUMERS = Path(__file__).parents[1] / "golden" / "consumers"
"""Stores of groups, positions and POP; ``truths.json`` says what each holds."""
HERE = Path(__file__).parents[1] / "golden" / "stores"


def cases() -> list[str]:
    """Names of all manifests: one for each store."""
    return sorted(path.name.removesuffix(".json.xz") for path in HERE.glob("*.json.xz"))


@functools.cache
def manifest(case: str) -> dict[str, Any]:
    """What RocketMQ found in the store of ``case``."""
    loaded: dict[str, Any] = json.loads(lzma.decompress((HERE / f"{case}.json.xz").read_bytes()))
    return loaded


def unpack(case: str, into: Path, folder: Path = HERE) -> Path:
    """Unpack the store of ``case`` below ``into`` and return its directory."""
    name, _, node = case.partition("-controller-")
    archive = f"{name}-controller" if node else case
    with tarfile.open(folder / f"{archive}.tar.gz") as opened:
        if hasattr(tarfile, "data_filter"):  # from 3.11.4 on; 3.11.2 is what Debian 12 has
            opened.extraction_filter = tarfile.data_filter
        opened.extractall(into)
    return into / (f"store-{node}" if node else "store")
