"""``twinlog store handover``: open messages of groups are made ready for RocketMQ's consumers.

The plan is shown first, by group and queue: what is copied to which retry topic, and what comes
again. It asks once; a store in which nothing has to be copied is left as it is.

Not here: how (``storage.tools.handover``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.log.directory import open_store, require_free
from cli.parsing import PRIVATE, Yes
from storage.errors import ForeignStore
from storage.tools.handover import (
    LIGHT,
    ORDERED,
    HandedOver,
    Handover,
    carry_out,
    plan_handover,
)
from storage.tools.recover import disk_at

AGAIN = {
    ORDERED: "an ordered group goes on at its first open message",
    LIGHT: "a light queue has no retries",
}
RETURN = (
    "no node opens the store any more; twinlog store adopt makes it the beginning of a new one, in "
    "which groups go on after the copied messages, and consume the retry topics like any other"
)


def handover(
    directory: Path,
    /,
    *,
    pop: bool = False,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make a stopped store exact for RocketMQ: its groups get what is not settled, once.

    A RocketMQ group has one position in a queue. What a shared group has open is copied to its
    retry topic and the position is put after it. Stop the whole cluster first, and hand the store
    of its last master over. Afterwards the store is a member of its group no more.

    Exit 65: it is damaged, or was not stopped cleanly; nothing was changed. 64: twinlog did not
    make it. A handover that met its end early is repeated by the same command.

    Args:
        directory: The data directory of a node that is not running.
        pop: The consumers use POP: retry topics have the topic's name as well.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    require_free(directory)
    with open_store(directory) as reader:
        disk = disk_at(directory)
        try:
            value = plan_handover(disk, reader, pop=pop)
        except ForeignStore as error:
            code = Exit.USAGE if error.code == "not-ours" else Exit.DATA
            hints = (error.hint,) if error.hint else ()
            facts = ("nothing was changed",)
            raise Failure(code, f"{directory}: {error.text}", facts=facts, hints=hints) from None
    if dry_run or not context.printer.machine:  # a program gets one document, at the end
        context.printer.answer(_answer(directory, value, None))
    if dry_run:
        return Exit.OK
    done = None
    if value.copied or value.unfinished:
        if not context.confirm(f"Hand {directory} over to RocketMQ?", yes=yes):
            return Exit.NO
        done = carry_out(disk, wall_ms=context.wall_ms(), pop=pop)
    answer = _answer(directory, value, done)
    if context.printer.machine:
        context.printer.answer(answer)
    elif done is not None:
        context.printer.line(f"\n{answer.tail}")
    return Exit.OK


def _answer(directory: Path, value: Handover, done: HandedOver | None) -> Answer:
    queues: list[Fields] = [
        {
            "group": one.group,
            "topic": one.topic,
            "queue": one.queue,
            "low": one.low,
            "next": one.next,
            "open": one.unsettled,
            "copied_to": one.retry or None,
            "again": one.again if one.why else 0,
            "why": AGAIN.get(one.why),
        }
        for one in value.queues
    ]
    copied = sum(one.unsettled for one in value.copied)
    again = sum(one.again for one in value.queues if one.why)
    lines = [f"{directory} · log ends at {value.end}"]
    if value.begun:
        lines.append("it was handed over before" if not value.unfinished else "it is half done")
    if copied:
        lines.append(f"{copied} messages are handed out and not settled: copied to retry topics")
    elif not value.unfinished:
        lines.append("nothing has to be copied: RocketMQ may open it as it is")
    if again:
        lines.append(f"{again} messages are settled after an open one and come again")
    tail = ""
    if done is not None:
        tail = f"{done.copies} messages copied, {done.missing} not kept any more; the log ends at "
        tail += f"{done.end}\n{RETURN}"
    return Answer(
        kind="StoreHandover",
        fields={
            "directory": str(directory),
            "end": value.end,
            "queues": queues,
            "to_copy": copied,
            "again": again,
            "begun": value.begun,
            "done": done is not None,
            "copies": done.copies if done is not None else None,
            "missing": done.missing if done is not None else None,
            "log_end": done.end if done is not None else None,
        },
        head="\n".join(lines),
        tables=[Table.of("GROUP TOPIC QUEUE> LOW> NEXT> OPEN> AGAIN> COPIED=copied_to", queues)]
        if queues
        else [],
        items=queues,
        names=sorted({one.group for one in value.queues}),
        tail=tail,
    )
