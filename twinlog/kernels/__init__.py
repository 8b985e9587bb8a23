"""Compiled loops over records, with a plain Python twin for each.

`TWINLOG_KERNELS` chooses: ``compiled`` (refuse to start without), ``python`` (the twins), ``auto``
(the default: compiled if they are there and were built from the sources that lie beside them, else
the twins; a stale build is reported by one warning). `which` tells what runs, `why` the reason.

The functions are described in `twinlog.kernels.plain`; codes in `twinlog.kernels.codes`.

Not here: anything that decides what to do with a result.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import warnings
from importlib.resources import files
from types import ModuleType
from typing import TYPE_CHECKING

from twinlog.errors import UsageError
from twinlog.kernels import plain, single
from twinlog.kernels.codes import EXPLANATIONS, REFUSALS

if TYPE_CHECKING:
    from twinlog.kernels.columns import decode_columns, record_starts
    from twinlog.kernels.match import match_entries
    from twinlog.kernels.plain import (
        Buffer,
        SectionEncoder,
        bodies_digest,
        check_section,
        crc32,
        crc32c,
        enter_keys,
        find_properties,
        find_property,
        gather_queues,
        gather_units,
        java_hash,
        key_hash,
        link_cells,
        patch_section,
        pick_properties,
        scan_keys,
        scan_queues,
        split_properties,
        split_record,
        store_timestamp_last,
        tags_code,
        unlink_cells,
        verify_records,
        walk,
    )
    from twinlog.kernels.single import (
        frame_head,
        place_batch,
        place_section,
        place_sections,
        take_frame,
    )

__all__ = [
    "EXPLANATIONS",
    "REFUSALS",
    "Buffer",
    "SectionEncoder",
    "bodies_digest",
    "check_section",
    "crc32",
    "crc32c",
    "decode_columns",
    "enter_keys",
    "find_properties",
    "find_property",
    "frame_head",
    "gather_queues",
    "gather_units",
    "java_hash",
    "key_hash",
    "link_cells",
    "match_entries",
    "patch_section",
    "pick_properties",
    "place_batch",
    "place_section",
    "place_sections",
    "record_starts",
    "scan_keys",
    "scan_queues",
    "split_properties",
    "split_record",
    "store_timestamp_last",
    "tags_code",
    "take_frame",
    "unlink_cells",
    "verify_records",
    "walk",
    "which",
    "why",
]

_SOURCES = ("_compiled.pyx", "columns.pxi", "match.pxi", "single.pxi", "crc.h")
REBUILD = "uv sync --reinstall-package twinlog"
"""The command that builds the compiled kernels again."""


def sources_digest() -> str | None:
    """Return the digest of the kernel sources that lie here; None when one is missing."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        source = files(__name__).joinpath(name)
        if not source.is_file():
            return None
        digest.update(source.read_bytes())
    return digest.hexdigest()


def load() -> tuple[ModuleType, str]:
    """Return the kernels to use and the reason.

    Raises:
        UsageError: ``TWINLOG_KERNELS`` asks for something that is not there or not known.
    """
    wanted = os.environ.get("TWINLOG_KERNELS", "auto")
    if wanted not in ("auto", "compiled", "python"):
        raise UsageError(
            f"TWINLOG_KERNELS is {wanted!r}", hint="use compiled, python or auto", code="setting"
        )
    if wanted == "python":
        return plain, "TWINLOG_KERNELS=python"
    try:
        compiled = importlib.import_module("twinlog.kernels._compiled")
    except ImportError:
        reason = "they are not built for this Python"
    else:
        if sources_digest() in (None, compiled.DIGEST):
            return compiled, "built from the sources beside them"
        reason = "they were built from other sources than those beside them"
        if wanted == "auto":
            text = f"the compiled kernels are not used: {reason}; build them: {REBUILD}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    if wanted == "compiled":
        raise UsageError(
            f"TWINLOG_KERNELS=compiled, but {reason}", hint=f"build them: {REBUILD}", code="kernels"
        )
    return plain, reason


_chosen, _why = load()
_small: ModuleType = single if _chosen is plain else _chosen


def which() -> str:
    """Return ``compiled`` or ``python``."""
    return "python" if _chosen is plain else "compiled"


def why() -> str:
    """Return why these kernels run, for ``twinlog version``."""
    return _why


if not TYPE_CHECKING:
    Buffer = plain.Buffer
    SectionEncoder = _chosen.SectionEncoder
    bodies_digest = _chosen.bodies_digest
    check_section = _chosen.check_section
    crc32 = _chosen.crc32
    crc32c = _chosen.crc32c
    decode_columns = _chosen.decode_columns
    enter_keys = _chosen.enter_keys
    find_properties = _chosen.find_properties
    find_property = _chosen.find_property
    frame_head = _small.frame_head
    gather_queues = _chosen.gather_queues
    gather_units = _chosen.gather_units
    java_hash = _chosen.java_hash
    key_hash = _chosen.key_hash
    link_cells = _chosen.link_cells
    match_entries = _chosen.match_entries
    patch_section = _chosen.patch_section
    pick_properties = _chosen.pick_properties
    place_batch = _small.place_batch
    place_section = _small.place_section
    place_sections = _small.place_sections
    record_starts = _chosen.record_starts
    scan_keys = _chosen.scan_keys
    scan_queues = _chosen.scan_queues
    split_properties = _chosen.split_properties
    split_record = _chosen.split_record
    store_timestamp_last = _chosen.store_timestamp_last
    tags_code = _chosen.tags_code
    take_frame = _small.take_frame
    unlink_cells = _chosen.unlink_cells
    verify_records = _chosen.verify_records
    walk = _chosen.walk
