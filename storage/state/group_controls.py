"""Control records of groups: they come into being, are defined otherwise, are deleted. Pure.

Not here: what groups have consumed (`storage.messaging`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

from storage.messaging.groups import GROUPS_MAX, Group, group_fields, group_from
from storage.state.control import Control, Known, texts
from storage.state.producers import Producers
from storage.state.topics import State


@dataclass(frozen=True, slots=True)
class CreateGroups(Control):
    """Groups come into being; those that exist stay as they are.

    Attributes:
        groups: Their definitions.
    """

    KIND: ClassVar[str] = "create-groups"
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        groups = _definitions(fields)
        return cls(groups) if groups is not None else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"groups": [group_fields(group) for group in self.groups]}

    def repeated(self, known: Known) -> int | None:
        """See `Control`."""
        found = [known.group(group.name) for group in self.groups]
        same = [
            one[1]
            for one, group in zip(found, self.groups, strict=True)
            if one is not None and one[0].same(group)
        ]
        return max(same) if same and len(same) == len(found) else None

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`. The same groups once more are no error: the answer is "duplicate"."""
        wrong = _group_refusal(self.groups)
        if wrong is not None:
            return wrong
        new = 0
        for group in self.groups:
            existing = known.group(group.name)
            new += existing is None
            if existing is not None and existing[0].mode != group.mode:
                text = f"group {group.name} exists with mode {existing[0].mode} and keeps it"
                return "group-mode", text
            if existing is not None and not existing[0].same(group):
                return "group-exists", f"group {group.name} exists and is defined otherwise"
        if known.groups + new > GROUPS_MAX:
            return "groups", f"there are at most {GROUPS_MAX} groups; delete some first"
        return None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        new = [one for one in self.groups if one.name not in state.groups and one.refusal() is None]
        for group in new:
            state.groups.setdefault(group.name, replace(group, created_at=end))
        return bool(new)

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


@dataclass(frozen=True, slots=True)
class AlterGroups(Control):
    """Groups are defined otherwise; the place of birth stays, and most modes do.

    Attributes:
        groups: Their whole definitions.
    """

    KIND: ClassVar[str] = "alter-groups"
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        groups = _definitions(fields)
        return cls(groups) if groups is not None else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"groups": [group_fields(group) for group in self.groups]}

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        wrong = _group_refusal(self.groups)
        if wrong is not None:
            return wrong
        for group in self.groups:
            existing = known.group(group.name)
            if existing is None:
                return "unknown-group", f"group {group.name} does not exist"
            if not existing[0].keeps_mode(group):
                text = f"group {group.name} has mode {existing[0].mode} and keeps it"
                return "group-mode", text
        return None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        changed = False
        for group in self.groups:
            old = state.groups.get(group.name)
            if old is not None and old.keeps_mode(group) and group.refusal() is None:
                kept = replace(group, created_at=old.created_at, created_ms=old.created_ms)
                changed |= kept != old
                state.groups[group.name] = kept
        return changed

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


@dataclass(frozen=True, slots=True)
class DeleteGroups(Control):
    """Groups are deleted, with their shares, positions and members.

    Attributes:
        names: Which.
    """

    KIND: ClassVar[str] = "delete-groups"
    names: tuple[str, ...]

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        names = fields.get("names")
        if not isinstance(names, list):
            return None
        found = cast("list[object]", names)
        return cls(tuple(str(name) for name in found)) if texts(found) else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"names": list(self.names)}

    @property
    def dropped(self) -> Collection[str]:
        """See `Control`."""
        return self.names

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        for name in self.names:
            if known.group(name) is None:
                return "unknown-group", f"group {name} does not exist"
        return None if self.names else ("group", "no group is named")

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        found = [state.groups.pop(name, None) for name in self.names]
        return any(group is not None for group in found)

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


def _definitions(fields: Mapping[str, object]) -> tuple[Group, ...] | None:
    rows = fields.get("groups")
    if not isinstance(rows, list):
        return None
    found = [
        group_from(cast("Mapping[str, object]", row)) if isinstance(row, dict) else None
        for row in cast("list[object]", rows)
    ]
    groups = tuple(group for group in found if group is not None)
    return groups if len(groups) == len(found) else None


def _group_refusal(groups: Sequence[Group]) -> tuple[str, str] | None:
    names = [group.name for group in groups]
    if not names or len(set(names)) < len(names):
        return "group", "one record defines at least one group, and each only once"
    return next((wrong for group in groups if (wrong := group.refusal()) is not None), None)
