"""``twinlog group history``: what a group did, told from the rows in the log.

Not here: what a row says (`twinlog.format.group_history`), one message (`cli.message.trace`).
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Table, rfc3339
from cli.cluster.patience import waiting_client
from cli.context import Context, accepted, note_source
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.group.answers import document
from cli.parsing import PRIVATE
from twinlog.errors import UnknownGroup
from twinlog.format.group_history import Step
from twinlog.ranges import RangeError

STEPS_DEFAULT = 1000
"""Steps that one call shows, unless it says otherwise."""
HEADS = "WHEN=at WHO WHAT QUEUE=place FROM> TO> ATTEMPT> +UNTIL +WHY"


def history(
    name: str,
    /,
    *,
    since: str = "-1h",
    topic: str | None = None,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = STEPS_DEFAULT,
    from_: str = "any",
    stale_ok: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show what a group did, oldest first: who was given which messages, and what became of them.

    It is read from the log, so it holds over every failover and reaches back as far as the log is
    kept. WHAT: ``joined``, ``left``, ``begun``, ``leased``, ``acked``, ``given back``, ``unused``,
    ``extended``, ``dead``, ``dropped``, ``left out``, ``position``, ``reset``, ``forgotten``. FROM
    and TO are queue offsets, both included; of a reset FROM is where the group goes on. A lease
    that ended by its time has no line of its own: its messages are leased again.

    Queues that the group has no more (it was deleted and made again, or a member of a broadcast
    group has left) are named where the log shows how the group began with them: ``--since start``.

    Args:
        name: Its name; of a group that was deleted, too.
        since: ``start``, or a time: ``2026-11-21T10:00Z``, ``-1h`` (written ``--since=-1h``).
        topic: Only what concerns this topic.
        count: At most this many lines, the first ones since then; what comes after is said.
        from_: ``any``, ``master``, ``slave`` or a node's name.
        stale_ok: Read a copy without a master, this old at most, as ``10m``; alone: however old.
    """
    if count < 1:
        raise Failure(Exit.USAGE, f"--count is {count}; it must be at least 1")
    context.check_reader(from_)
    age = accepted(stale_ok)
    with waiting_client(context) as client:
        try:
            steps = client.history(name, since=since, read_from=from_, max_staleness=age)
            wanted = (step for step in steps if topic is None or step.topic == topic)
            found = list(islice(wanted, count + 1))
        except RangeError:
            hints = ("write start, 2026-11-21T10:00Z or -1h",)
            raise Failure(Exit.USAGE, f'"{since}" is not a time', hints=hints) from None
        except UnknownGroup:
            document(client, name)  # names the closest group
            raise
        note_source(steps.source, context)
    more = len(found) > count
    items = [_item(step) for step in found[:count]]
    if more:
        only = f" --topic {topic}" if topic else ""
        rest = f"twinlog group history {name} --since {items[-1]['at']}{only}"
        context.printer.note(f"there is more: {rest}")
    context.printer.answer(_answer(name, items, more=more))
    return Exit.OK


def _answer(name: str, items: list[Fields], *, more: bool) -> Answer:
    return Answer(
        kind="GroupHistory",
        fields={"group": name, "more": more, "steps": items},
        tables=[Table.of(HEADS, items)],
        items=items,
        names=[f"group/{name}"],
    )


def _item(step: Step) -> Fields:
    return {
        "at": rfc3339(step.at_ms),
        "who": step.name or (str(step.member) if step.member else None),
        "member": str(step.member) if step.member else None,
        "what": step.what,
        "topic": step.topic or None,
        "queue": step.queue if step.topic else None,
        "place": f"{step.topic}/{step.queue}" if step.topic else None,
        "from": step.first if step.first >= 0 else None,
        "to": step.last if step.last >= 0 else None,
        "attempt": step.attempt or None,
        "until": rfc3339(step.until_ms) if step.until_ms else None,
        "why": step.why or None,
    }


__all__ = ["history"]
