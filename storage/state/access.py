"""Who may do what: users, teams of users, and rules. Pure.

Rules only allow; their order does not matter. A rule is for a user or for a team (``@ops``), and is
about a topic, a group (``topic:orders``, ``group:billing-*``; a star at the end stands for any
rest), or the cluster. Users and rules are made and removed by control records
(`storage.state.controls.ChangeAccess`), so every node has the same ones at the same log offset.

Not here: enforcing (``node.access``), what a request needs (``twinlog.wire.rights``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from twinlog.wire.rights import RIGHTS
from twinlog.wire.scram import ITERATIONS_MAX, ITERATIONS_MIN, Verifier

USERS_MAX = 10_000
RULES_MAX = 10_000
TEAMS_MAX = 64
"""Teams of one user."""
OPERATOR = "operator"
"""The user whose password is a file on the nodes' machines; it is in no log."""

_USER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._@-]{0,63}\Z")
_NAME = re.compile(r"[%|a-zA-Z0-9_-]{0,255}\*?\Z")


@dataclass(frozen=True, slots=True)
class User:
    """One user.

    Attributes:
        name: Letters, digits, ``.``, ``_``, ``-`` and ``@``, at most 64.
        teams: Sorted names of teams, without ``@``.
        verifier: Of the password; None: logs in with a certificate only.
    """

    name: str
    teams: tuple[str, ...] = ()
    verifier: Verifier | None = None


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One rule: ``who`` has ``right`` to ``what``.

    >>> Rule("alice", "read", "topic:orders-*").covers("orders-eu")
    True
    """

    who: str
    right: str
    what: str

    @property
    def thing(self) -> str:
        """What kind of thing it is about."""
        return self.what.partition(":")[0]

    def covers(self, name: str) -> bool:
        """Whether it is about a thing of this name, if the kind is right."""
        pattern = self.what.partition(":")[2]
        return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@dataclass(frozen=True, slots=True)
class Access:
    """All users and rules at one log offset."""

    users: Mapping[str, User] = field(default_factory=dict[str, User])
    rules: frozenset[Rule] = frozenset()

    def rules_of(self, user: User) -> frozenset[Rule]:
        """Return the rules for a user and its teams."""
        names = {user.name, *("@" + team for team in user.teams)}
        return frozenset(rule for rule in self.rules if rule.who in names)

    def common(self, other: Access) -> Access:
        """Return what both allow: users with the same password, their teams in both, rules."""
        users = dict[str, User]()
        for name, user in self.users.items():
            there = other.users.get(name)
            if there is not None and there.verifier == user.verifier:
                teams = tuple(team for team in user.teams if team in there.teams)
                users[name] = replace(user, teams=teams)
        return Access(users, self.rules & other.rules)


NOBODY = Access()


def user_refusal(user: User) -> str | None:
    """Return why there can be no such user; None when there can."""
    wrong = name_refusal(user.name)
    if wrong is None and len(user.teams) > TEAMS_MAX:
        wrong = f"a user is in at most {TEAMS_MAX} teams"
    found = [name_refusal(team) for team in user.teams]
    kept = user.verifier
    if kept is not None and not (
        ITERATIONS_MIN <= kept.iterations <= ITERATIONS_MAX
        and len(kept.stored_key) == len(kept.server_key) == 32
        and 8 <= len(kept.salt) <= 64
    ):
        return "the verifier of the password has another form"
    return wrong or next((one for one in found if one), None)


def name_refusal(name: str) -> str | None:
    """Return why no user or team can be called so; None when one can."""
    if name == OPERATOR:
        return f"{OPERATOR} is built in: its password is the file that [access] names"
    if _USER.match(name) is None:
        return "users and teams have 1 to 64 letters, digits, '.', '_', '-' and '@'"
    return None


def rule_refusal(rule: Rule) -> str | None:
    """Return why there can be no such rule; None when there can."""
    thing, colon, name = rule.what.partition(":")
    rights = cast("Mapping[str, Sequence[str]]", RIGHTS).get(thing)
    if rights is None or (thing == "cluster") is bool(colon):
        return "a rule is about topic:NAME, group:NAME or cluster; NAME may end with *"
    if rule.right not in rights:
        return f"the rights to a {thing} are {', '.join(rights)}, not {rule.right[:64]!r}"
    if colon and (not name or _NAME.match(name) is None):
        return "a name has letters, digits, %, |, _ and -, and may end with *"
    return name_refusal(rule.who.removeprefix("@"))


def user_row(user: User) -> list[object]:
    """Return a user as it is stored."""
    kept = user.verifier
    keys = None if kept is None else [kept.salt, kept.iterations, kept.stored_key, kept.server_key]
    return [user.name, list(user.teams), keys]


def user_of(row: object) -> User | None:
    """Return the user in a stored row; None if it has another form."""
    columns = cast("list[object]", row) if isinstance(row, list) else []
    match columns:
        case [str(name), teams, None] if isinstance(teams, list):
            return User(name, _texts(cast("list[object]", teams)))
        case [str(name), teams, keys] if isinstance(teams, list) and isinstance(keys, list):
            kept = _verifier(cast("list[object]", keys))
            found = _texts(cast("list[object]", teams))
            return None if kept is None else User(name, found, kept)
        case _:
            return None


def _verifier(columns: list[object]) -> Verifier | None:
    match columns:
        case [bytes(salt), int(count), bytes(stored), bytes(server)]:
            return Verifier(salt, count, stored, server)
        case _:
            return None


def rule_of(row: object) -> Rule | None:
    """Return the rule in a stored row; None if it has another form."""
    match row:
        case [str(who), str(right), str(what)]:
            return Rule(who, right, what)
        case _:
            return None


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values}))
