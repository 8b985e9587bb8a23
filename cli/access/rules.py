"""``twinlog rule`` and ``access check``: what users and teams may do, and why."""

from __future__ import annotations

from typing import Annotated

from cli.access.users import asked, change
from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import flag, tables
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from storage.state.access import Rule, rule_refusal


def add(who: str, right: str, what: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Allow a user or a team something; harmless when it is allowed already.

    Args:
        who: A user, or ``@TEAM``.
        right: ``read``, ``write`` or ``manage``; of the cluster ``operate``, which allows all.
        what: ``topic:NAME`` or ``group:NAME``, NAME exact or with ``*`` at its end
            (``topic:orders-*``), or ``cluster``.
    """
    return _changed(context, "RuleAdd", "rules", Rule(who, right, what), "allowed from now on")


def remove(who: str, right: str, what: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Take a rule back, as it was made; connections of those who lose by it are closed.

    Args:
        who: A user, or ``@TEAM``.
        right: As in ``rule list``.
        what: As in ``rule list``.
    """
    return _changed(context, "RuleRemove", "ended", Rule(who, right, what), "removed")


def _changed(context: Context, kind: str, key: str, rule: Rule, outcome: str) -> int:
    wrong = rule_refusal(rule)
    if wrong is not None:
        raise Failure(Exit.USAGE, f"{wrong}; nothing was changed")
    change(context, {key: [[rule.who, rule.right, rule.what]]})
    context.printer.answer(
        Answer(
            kind=kind,
            fields={"who": rule.who, "right": rule.right, "what": rule.what, "outcome": outcome},
            head=f"{rule.who} {rule.right} {rule.what}: {outcome}",
            names=[f"rule/{rule.who}/{rule.right}/{rule.what}"],
        )
    )
    return Exit.OK


def list_rules(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """List the rules.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context), watch=watch)


def _list(context: Context) -> int:
    with waiting_client(context) as client:
        items = tables(asked(client, {"op": "list"}).get("rules"))
    context.printer.answer(
        Answer(
            kind="RuleList",
            fields={"rules": items},
            tables=[Table.of("WHO RIGHT WHAT", items)],
            items=items,
            names=[f"rule/{one['who']}/{one['right']}/{one['what']}" for one in items],
        )
    )
    return Exit.OK


def check(who: str, what: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Say what a user may do with something, and which rule allows it.

    Exit 0 if there is any right, 1 if not.

    Args:
        who: A user.
        what: ``topic:NAME``, ``group:NAME`` or ``cluster``; whether there is one does not matter.
    """
    with waiting_client(context) as client:
        items = tables(asked(client, {"op": "check", "who": who, "what": what}).get("judged"))
    for one in items:
        one["allowed"] = "yes" if flag(one, "allowed") else "no"
        one["rule"] = one["rule"] or "no rule allows it"
    context.printer.answer(
        Answer(
            kind="AccessCheck",
            fields={"who": who, "what": what, "rights": items},
            head=f"{who} and {what}",
            tables=[Table.of("RIGHT ALLOWED RULE", items)],
            items=items,
            names=[str(one["right"]) for one in items if one["allowed"] == "yes"],
        )
    )
    return Exit.OK if any(one["allowed"] == "yes" for one in items) else Exit.NO
