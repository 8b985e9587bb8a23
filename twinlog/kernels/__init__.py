"""Compiled loops over records, with a plain Python twin for each.

`TWINLOG_KERNELS` chooses: ``compiled`` (refuse to start without), ``python`` (the twins), ``auto``
(the default: compiled if they exist and were built from the sources beside them, else the twins; a
stale build is reported by one warning). `which` tells what runs, `why` the reason.

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

from twinlog.errors import UsageError
from twinlog.kernels import plain, single
from twinlog.kernels.codes import EXPLANATIONS as EXPLANATIONS
from twinlog.kernels.codes import REFUSALS as REFUSALS
from twinlog.kernels.columns import decode_columns as decode_columns
from twinlog.kernels.columns import record_starts as record_starts
from twinlog.kernels.match import match_entries as match_entries
from twinlog.kernels.messages import cut_messages as cut_messages
from twinlog.kernels.plain import Buffer as Buffer
from twinlog.kernels.plain import SectionEncoder as SectionEncoder
from twinlog.kernels.plain import bodies_digest as bodies_digest
from twinlog.kernels.plain import check_section as check_section
from twinlog.kernels.plain import crc32 as crc32
from twinlog.kernels.plain import crc32c as crc32c
from twinlog.kernels.plain import enter_keys as enter_keys
from twinlog.kernels.plain import find_properties as find_properties
from twinlog.kernels.plain import find_property as find_property
from twinlog.kernels.plain import gather_queues as gather_queues
from twinlog.kernels.plain import gather_units as gather_units
from twinlog.kernels.plain import java_hash as java_hash
from twinlog.kernels.plain import key_hash as key_hash
from twinlog.kernels.plain import link_cells as link_cells
from twinlog.kernels.plain import patch_section as patch_section
from twinlog.kernels.plain import pick_properties as pick_properties
from twinlog.kernels.plain import scan_keys as scan_keys
from twinlog.kernels.plain import scan_queues as scan_queues
from twinlog.kernels.plain import split_properties as split_properties
from twinlog.kernels.plain import split_record as split_record
from twinlog.kernels.plain import store_timestamp_last as store_timestamp_last
from twinlog.kernels.plain import tags_code as tags_code
from twinlog.kernels.plain import unlink_cells as unlink_cells
from twinlog.kernels.plain import verify_records as verify_records
from twinlog.kernels.plain import walk as walk
from twinlog.kernels.single import frame_head as frame_head
from twinlog.kernels.single import place_batch as place_batch
from twinlog.kernels.single import place_section as place_section
from twinlog.kernels.single import place_sections as place_sections
from twinlog.kernels.single import take_frame as take_frame

_SOURCES = ("_compiled.pyx", "columns.pxi", "match.pxi", "messages.pxi", "single.pxi", "crc.h")
REBUILD = "uv sync --reinstall-package twinlog"
"""The command that builds the compiled kernels again."""


def sources_digest() -> str | None:
    """Return the digest of the kernel sources in this folder; None when one is missing."""
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
        UsageError: ``TWINLOG_KERNELS`` asks for kernels that are not built, or is unknown.
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


def which() -> str:
    """Return ``compiled`` or ``python``."""
    return "python" if _chosen is plain else "compiled"


def why() -> str:
    """Return why these kernels run, for ``twinlog version``."""
    return _why


def _replace_twins(chosen: ModuleType) -> None:
    """Put the compiled functions in place of the plain ones that are imported above.

    Type checkers see the plain ones, whose signatures are the same (a property test holds it).
    """
    here = globals()
    for name in {name for name in (*vars(plain), *vars(single)) if not name.startswith("_")}:
        if callable(here.get(name)) and hasattr(chosen, name):
            here[name] = getattr(chosen, name)


_replace_twins(_chosen)
