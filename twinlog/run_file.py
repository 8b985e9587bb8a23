"""``twinlog/run.json`` in a data folder: who runs there, and on which ports.

A node and a coordinator write it when they answer and remove it when they stop; after a kill it
stays. Ports of 0 in ``cluster.toml`` are looked up here, on the machine itself. Readers never see
half of a file: it is written aside and renamed. It is a note for people and commands; nothing that
must survive a crash depends on it, so it is not fsynced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

RUN_FILE = "twinlog/run.json"
"""Below the data folder."""


def write_run_file(folder: Path, facts: Mapping[str, object]) -> None:
    """Replace the run file of ``folder`` with ``facts``: pid, ports, version.

    Raises:
        OSError: The disk refused; the former file is unchanged.
    """
    aside = folder / f"{RUN_FILE}.new"
    aside.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    aside.write_text(text + "\n", encoding="utf-8")
    os.replace(aside, folder / RUN_FILE)


def read_run_file(folder: Path) -> dict[str, object] | None:
    """Return what the process in ``folder`` wrote; None: nothing runs there, or it is damaged."""
    return read_json(folder / RUN_FILE)


def running_port(folder: Path, port: str) -> int | None:
    """Return the port that the process in ``folder`` was given; None while it is unknown."""
    ports = (read_run_file(folder) or {}).get("ports")
    found = cast("dict[str, object]", ports).get(port) if isinstance(ports, dict) else None
    return found if isinstance(found, int) else None


def remove_run_file(folder: Path) -> None:
    """Remove the run file; a missing one is fine."""
    (folder / RUN_FILE).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, object] | None:
    """Return the object in a JSON file; None when there is no file, or no object in it."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None
