"""ACCESS: users and rules, listed, changed and explained.

* ``self``: the name of who asks;
* ``list``: users without their passwords, and rules;
* ``change``: ``users`` and ``rules`` that are made, ``gone`` and ``ended`` that are removed, in
  rows as `storage.state.access` stores them; answered when the log has confirmed it;
* ``check``: for ``who`` and ``what`` (``topic:NAME``, ``group:NAME``, ``cluster``): each right,
  whether it is there, and the rule that gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from node.access.grants import BUILT_IN, Grants
from storage.state.access import OPERATOR, Access, User
from storage.state.controls import ChangeAccess
from storage.state.sections import Outcome, SectionResult
from twinlog.errors import OutcomeUnknown, TwinlogError, UsageError
from twinlog.wire.rights import RIGHTS, Right, Thing

if TYPE_CHECKING:
    from replication.driver.driver import Driver

CHANGE_SECONDS = 10.0
"""How long a change waits for its confirmation."""

REFUSALS = frozenset({"access", "unknown-user", "unknown-rule"})


class AccessOrders:
    """See the module.

    Args:
        driver: Appends changes.
        access: Returns the users and rules that bind now.
        refusal: Makes the error for a refusal that concerns the node.
    """

    def __init__(
        self,
        driver: Driver,
        access: Callable[[], Access],
        *,
        refusal: Callable[[str, str], TwinlogError],
    ) -> None:
        self._driver = driver
        self._access = access
        self._refusal = refusal

    def order(
        self,
        fields: Mapping[str, object],
        user: str | None,
        now: float,
        done: Callable[[Mapping[str, object] | TwinlogError], None],
    ) -> None:
        """Carry out an ACCESS of ``user``; answered once.

        Raises:
            UsageError: It makes no sense; nothing was done.
        """
        match fields.get("op"):
            case "self":
                done({"user": user})
            case "list":
                done(self._list())
            case "check":
                done(self._check(fields.get("who"), fields.get("what")))
            case "change":
                self._change(fields, now, done)
            case other:
                text = f"access knows self, list, check and change, not {other!r}"
                raise UsageError(text, code="fields")

    def _list(self) -> Mapping[str, object]:
        access = self._access()
        return {
            "users": [
                {
                    "user": one.name,
                    "teams": list(one.teams),
                    "password": one.verifier is not None,
                    "rules": len(access.rules_of(one)),
                }
                for _, one in sorted(access.users.items())
            ],
            "rules": [
                {"who": one.who, "right": one.right, "what": one.what}
                for one in sorted(access.rules)
            ],
        }

    def _check(self, who: object, what: object) -> Mapping[str, object]:
        access = self._access()
        user = access.users.get(who) if isinstance(who, str) else None
        if who == OPERATOR:
            user = User(OPERATOR)
        if user is None:
            hint = "the users: twinlog user list"
            raise UsageError(f"there is no user {str(who)[:64]}", code="unknown-user", hint=hint)
        said, _, name = str(what).partition(":")
        thing: Thing | None = cast("Thing", said) if said in RIGHTS else None
        if thing is None or (thing == "cluster") is bool(name):
            text = "what is asked about is topic:NAME, group:NAME or cluster"
            raise UsageError(text, code="fields")
        grants = Grants(user, access.rules_of(user) if who != OPERATOR else [BUILT_IN])
        return {"judged": [_judged(grants, right, thing, name) for right in RIGHTS[thing]]}

    def _change(
        self,
        fields: Mapping[str, object],
        now: float,
        done: Callable[[Mapping[str, object] | TwinlogError], None],
    ) -> None:
        nothing = list[object]()
        rows = {name: fields.get(name) or nothing for name in ("users", "rules", "gone", "ended")}
        change = ChangeAccess.read(rows)
        if change is None:
            raise UsageError("a row of a user or a rule has another form", code="fields")

        def reply(results: list[SectionResult], by: str | None) -> None:
            result = results[0]
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                done({"changed": True})
            elif result.outcome is Outcome.REFUSED and result.code in REFUSALS:
                done(UsageError(result.text, code=result.code))
            elif result.outcome is Outcome.REFUSED:
                done(self._refusal(result.code, result.text))
            else:
                hint = "look: twinlog user list, twinlog rule list"
                done(OutcomeUnknown("the change may or may not be made", hint=hint))

        self._driver.control(now, change, deadline=now + CHANGE_SECONDS, reply=reply)


def _judged(grants: Grants, right: Right, thing: Thing, name: str) -> Mapping[str, object]:
    rule = grants.why((right, thing, name))
    why = "" if rule is None else f"{rule.who} {rule.right} {rule.what}"
    return {"right": right, "allowed": rule is not None, "rule": why}
