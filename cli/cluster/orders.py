"""Changes of the register that an operator orders: the plan first, one question, then the order.

Every such command shows what will be true afterwards before anything happens, asks once (``--yes``
answers), and says done only when the coordinator has made the change durable. ``--dry-run`` ends
after the plan. Exit codes: 0 done, 1 not agreed to, 69 refused (nothing was changed), 75 unknown.

Not here: what each order means (``cli.cluster.members``, ``cli.cluster.recovery``).
"""

from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import dataclass, field

from cli.answer import Answer, Table
from cli.cluster.health import start_command
from cli.cluster.view import ClusterView
from cli.config_file import COORDINATOR
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, flag, table, text, whole
from twinlog.wire.frames import Type


@dataclass(frozen=True, slots=True)
class Order:
    """One change, in the words that the operator sees.

    Attributes:
        kind: Of the document that answers.
        operation: What the coordinator is asked, as `replication.register.operations` reads it.
        lines: What will be true afterwards, and what it may cost.
        question: Asked before it is done.
        fields: Facts for machines.
        tables: What the plan was made from.
    """

    kind: str
    operation: Fields
    lines: tuple[str, ...]
    question: str
    fields: Fields = field(default_factory=dict[str, object])
    tables: tuple[Table, ...] = ()


def carry_out(
    order: Order,
    view: ClusterView,
    context: Context,
    *,
    dry_run: bool,
    yes: bool,
    then: Callable[[], int] | None = None,
) -> int:
    """Show the plan, ask, and give the order; return the exit code.

    ``then`` goes on with what the order began, and answers for both.

    Raises:
        Failure: The coordinator refused; nothing was changed.
        OutcomeUnknown: It did not answer; the change may have happened or may still happen.
    """
    plan: Fields = {"cluster": view.name, **order.fields, "plan": list(order.lines)}
    if dry_run:
        answer = Answer(
            kind=order.kind,
            fields={**plan, "done": False},
            head="\n".join(order.lines),
            tables=list(order.tables),
            tail="Nothing was changed.",
        )
        context.printer.answer(answer)
        return Exit.OK
    for line in order.lines:
        context.printer.note(line)
    if not context.confirm(order.question, yes=yes):
        return Exit.NO
    answered = call(context, view.coordinator.address, order.operation)
    told = text(answered, "text")
    if told:
        context.printer.note(told)
    if then is not None:
        return then()
    state = table(answered.get("state"))
    done: Fields = {
        **plan, "done": True, "revision": whole(state, "revision"), "epoch": whole(state, "epoch"),
    }  # fmt: skip
    context.printer.answer(
        Answer(kind=order.kind, fields=done, head="Done.", next="twinlog cluster status")
    )
    return Exit.OK


def need_coordinator(view: ClusterView) -> None:
    """Refuse an order while the coordinator, which would carry it out, is away.

    Raises:
        Failure: The coordinator does not answer (exit 69).
    """
    if not view.coordinator.answers:
        raise Failure(
            Exit.UNAVAILABLE,
            f"the coordinator at {view.coordinator.address or '?'} does not answer",
            facts=(view.coordinator.reason, "roles cannot change while it is away"),
            hints=(f"start it: {start_command(view, COORDINATOR)}",),
        )


class OrderRefused(Failure):
    """The coordinator refused an order; nothing was changed.

    Attributes:
        code: Why, as the register names it.
    """

    def __init__(self, code: str, text: str, hint: str) -> None:
        facts, hints = (f"the coordinator's answer: {code}",), (hint,) if hint else ()
        super().__init__(Exit.UNAVAILABLE, text, facts=facts, hints=hints)
        self.code = code


def call(context: Context, address: str, operation: Fields) -> Fields:
    """Ask the coordinator to change its register.

    Raises:
        OrderRefused: It refused (exit 69, with its reason); nothing was changed.
        OutcomeUnknown: It did not answer after it had got the request.
    """
    answer = context.ask(address, Type.CO_CALL, {"op": operation}, context.left())
    if flag(answer, "ok"):
        return answer
    code, told = text(answer, "code"), text(answer, "text")
    raise OrderRefused(
        code or "refused", told or "the coordinator refused", text(answer, "hint") or ""
    )


def user() -> str:
    """Who is asking, for the history."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):
        return "user ?"
