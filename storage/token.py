"""The writer's token. Pure.

Bytes of a log are written under one token at a time; see `storage.store`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Token:
    """The right to write: one role in one epoch and one session."""

    role: str
    epoch: int
    session: int
