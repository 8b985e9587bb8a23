"""What one user may do: rules, asked by name. Pure.

An answer is remembered, so a request costs one look into a dictionary for each name it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from storage.messaging.copies import UNDELIVERABLE
from storage.state.access import OPERATOR, Rule, User
from twinlog.format.system_topics import (
    DEAD_PREFIX,
    DELAY_TOPIC,
    GIVEN_UP_TOPIC,
    RETRY_PREFIX,
)
from twinlog.wire.rights import RIGHTS, Need

REMEMBERED_MAX: Final = 4_096
"""Answers remembered for one user; names come from clients, so beyond it all are forgotten."""

_OWN: Final = ("rmq_sys_", "RMQ_SYS_", DELAY_TOPIC, "TBW102")
"""What names of the store's own topics begin with; who operates the cluster reads them."""

_OF_ALL: Final = frozenset({GIVEN_UP_TOPIC, UNDELIVERABLE})
"""Topics with what could not be delivered of all topics: likewise."""

BUILT_IN: Final = Rule(OPERATOR, "operate", "cluster")


class Grants:
    """See the module.

    Args:
        user: Who.
        rules: For this user and its teams.

    >>> alice = Grants(User("alice"), [Rule("alice", "read", "topic:orders-*")])
    >>> alice.may(("read", "topic", "orders-eu")), alice.may(("write", "topic", "orders-eu"))
    (True, False)
    """

    def __init__(self, user: User, rules: Iterable[Rule]) -> None:
        self.user = user
        self.rules = frozenset(rules)
        self._operates = next((one for one in self.rules if one.right == "operate"), None)
        self._known: dict[Need, bool] = {}

    def may(self, need: Need) -> bool:
        """Whether the user has a right."""
        found = self._known.get(need)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = self._known[need] = self.why(need) is not None
        return found

    def sees(self, thing: str, name: str) -> bool:
        """Whether the user may know of a topic or group."""
        return self.may(("see", "topic" if thing == "topic" else "group", name))

    def why(self, need: Need) -> Rule | None:
        """Return the rule that gives a right; None: no rule does."""
        if self._operates is not None:
            return self._operates
        right, thing, name = need
        if thing == "cluster" or (thing == "topic" and (name.startswith(_OWN) or name in _OF_ALL)):
            return None
        if right == "see":
            needs: list[Need] = [(one, thing, name) for one in RIGHTS[thing]]
            return next(filter(None, map(self.why, needs)), None)
        for rule in sorted(self.rules):
            if rule.right == right and rule.thing == thing and rule.covers(name):
                return rule
        return self._of_its_group(need)

    def _of_its_group(self, need: Need) -> Rule | None:
        """A group's dead letters are its readers'; who manages the group may write them, too."""
        right, thing, name = need
        for prefix in (DEAD_PREFIX, RETRY_PREFIX):
            if thing == "topic" and name.startswith(prefix):
                group = name[len(prefix) :]
                return self.why(("read" if right == "read" else "manage", "group", group))
        return None

    def lost(self, before: Grants) -> bool:
        """Whether ``before``, of the same user, had more, or another password."""
        return self.user.verifier != before.user.verifier or not before.rules <= self.rules
