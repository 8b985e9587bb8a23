"""What comes of an operation: the state after it, or why not."""

from __future__ import annotations

from dataclasses import dataclass

from replication.register.group_state import GroupState


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not. ``alarm``: the caller proves that the register went back."""

    code: str
    text: str
    hint: str = ""
    alarm: bool = False


Outcome = GroupState | Refused
