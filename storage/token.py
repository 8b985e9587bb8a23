"""The writer's token. Pure.

Bytes of a log are written under one token at a time; see `storage.store`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Token:
    """The permission to write, for one role in one epoch and session (R16)."""

    role: str
    epoch: int
    session: int
