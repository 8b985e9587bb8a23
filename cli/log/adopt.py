"""``twinlog store adopt``: what RocketMQ wrote becomes the beginning of a twinlog store.

The plan is shown first: how many bytes twinlog did not write, where its first epoch will begin,
which topics there will be. It asks once. No part of the log is deleted; overwritten bytes are kept
in ``cut``.

Not here: how (``storage.tools.adopt``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.log.directory import open_store, require_free
from cli.parsing import PRIVATE, Yes
from storage.marks.handed_over import is_handed_over
from storage.marks.identity import Who, read_identity
from storage.tools.adopt import Adoption, carry_out, plan_adoption
from storage.tools.recover import disk_at
from twinlog.format.system_topics import RETRY_PREFIX
from twinlog.store.reader import StoreReader
from twinlog.units import format_size


def adopt(
    directory: Path,
    /,
    *,
    cluster: str | None = None,
    group: str | None = None,
    node: str | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make a store that RocketMQ wrote, or went on with, a store of a new group.

    All that is in its log becomes epoch 0; the group's first epoch begins in a new file. Copies
    that are adopted on several nodes have equal logs.

    Exit 65: it is damaged, or was not stopped cleanly; nothing was changed. 66: it has no log. 2:
    something of it could not be read; nothing was changed.

    Args:
        directory: The store, stopped cleanly and not in use.
        cluster: Name of the cluster; default that of the store, if twinlog made it.
        group: Name of the group; default that of the store, else g1.
        node: Name of the node; default that of the store, if twinlog made it.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    require_free(directory)
    with open_store(directory) as ours, StoreReader(directory, rocketmq=True) as reader:
        disk = disk_at(directory)  # not before: it makes a directory that is not there
        before = read_identity(disk)
        value = plan_adoption(reader, ours)
        named = before.who if before is not None else None
        who = Who(
            _name("cluster", cluster, named.cluster if named else None),
            _name("group", group, named.group if named else "g1"),
            _name("node", node, named.node if named else None),
            value.family,
        )
        complete = value.epoch > 1  # an adoption that met its end early has no twinlog epoch yet
        handed_over = is_handed_over(disk)
        kept = not value.foreign and ours.clean and complete and not handed_over
        if named == who and kept:
            context.printer.note(f"{directory} is the store of {who.node} already")
            if not context.printer.machine:  # there is no plan: nothing of it would be done
                return Exit.OK
            dry_run = True
        if dry_run or not context.printer.machine:  # a program gets one document, at the end
            context.printer.answer(_answer(directory, value, who, None, handed_over=handed_over))
        if dry_run:
            return Exit.OK
        if not context.confirm(f"Adopt {directory} as {who.node} of {who.cluster}?", yes=yes):
            return Exit.NO
        end = carry_out(disk, value, who, reader=reader, ours=ours)
    done = _answer(directory, value, who, end, handed_over=handed_over)
    if context.printer.machine:
        context.printer.answer(done)
    else:
        context.printer.line(f"\n{done.tail}")
    return Exit.OK


def _name(what: str, given: str | None, before: str | None) -> str:
    from node.config.sections import NAME_HINT
    from node.config.values import NAME

    found = given or before
    if found is None:
        text = f"the store has no {what} yet"
        raise Failure(Exit.USAGE, text, hints=(f"name it: --{what} NAME",))
    if given and re.fullmatch(NAME, given.replace("\n", " ")) is None:
        text = f'--{what} is "{given}", which no cluster.toml can name'
        raise Failure(Exit.USAGE, text, hints=(NAME_HINT,))
    return found


def _retries(value: Adoption) -> dict[str, int]:
    """Return how many messages wait for groups in RocketMQ's retry topics, by topic."""
    known = {group.name for group in value.consumed.groups}
    positions = {(topic, queue): at for (_, topic, queue), at in value.consumed.positions}
    found: dict[str, int] = {}
    for topic, queue, start, end in value.queues:
        name = topic.removeprefix(RETRY_PREFIX)
        ours = any(name == group or name.startswith((f"{group}_", f"{group}+")) for group in known)
        waiting = end - max(start, positions.get((topic, queue), start))
        if topic.startswith(RETRY_PREFIX) and ours and waiting > 0:
            found[topic] = found.get(topic, 0) + waiting
    return found


def _plan(value: Adoption, who: Who, *, handed_over: bool) -> list[str]:
    foreign = format_size(value.foreign)
    lines = [
        f"log {value.start}..{value.end}, {value.records} records, {foreign} not written by us",
        f"all of it becomes epoch 0; epoch {value.epoch} begins at {value.border}",
        f"store of {who.node}, group {who.group} of {who.cluster}, {len(value.topics)} topics",
    ]
    if handed_over:
        lines.append("it was handed over to RocketMQ: a group goes on at RocketMQ's position")
    consumed = value.consumed
    if consumed.groups:
        lines.append(
            f"{len(consumed.groups)} consumer groups, {len(consumed.positions)} positions, "
            f"{consumed.in_flight} messages popped and not settled: handed out again when due"
        )
    lines += [
        f"{count} messages wait in {topic}: an ordinary topic from now on; its group consumes it"
        for topic, count in _retries(value).items()
    ]
    if value.timed.rows:
        lines.append(f"{len(value.timed.rows)} messages wait for a time: delivered when due")
    if value.timed.repeated:
        lines.append(
            f"{value.timed.repeated} messages that waited for a time are in the log already, "
            f"though timercheck does not say so: not delivered again"
        )
    if value.halves.rows:
        lines.append(
            f"{len(value.halves.rows)} messages of transactions are open: their producers are asked"
        )
    if value.halves.repeated:
        lines.append(
            f"{value.halves.repeated} messages of transactions are committed, though no op record "
            f"says so: not asked about"
        )
    if value.delayed.waiting:
        lines.append(
            f"{value.delayed.waiting} delayed messages wait for their level: delivered when due"
        )
    if value.delayed.repeated:
        lines.append(
            f"{value.delayed.repeated} delayed messages are in the log already, though "
            f"delayOffset.json does not say so: not delivered again"
        )
    lines += [f"no topic for {name}: {why}" for name, why in value.left_out]
    lines += [f"no group {name}: {why}" for name, why in consumed.left_out]
    return lines


def _answer(
    directory: Path, value: Adoption, who: Who, end: int | None, *, handed_over: bool
) -> Answer:
    topics: list[Fields] = [{"topic": name, "queues": queues} for name, queues in value.topics]
    fields: Fields = {
        "directory": str(directory),
        "cluster": who.cluster,
        "group": who.group,
        "node": who.node,
        "start": value.start,
        "end": value.end,
        "foreign_bytes": value.foreign,
        "records": value.records,
        "epoch": value.epoch,
        "epoch_start": value.border,
        "segment_size": value.segment_size,
        "topics": topics,
        "timers_waiting": len(value.timed.rows),
        "timers_repeated": value.timed.repeated,
        "delays_waiting": value.delayed.waiting,
        "delays_repeated": value.delayed.repeated,
        "groups": [group.name for group in value.consumed.groups],
        "positions": len(value.consumed.positions),
        "in_flight": value.consumed.in_flight,
        "retries": [{"topic": topic, "messages": n} for topic, n in _retries(value).items()],
        "handed_over": handed_over,
        "left_out": [{"topic": name, "why": why} for name, why in value.left_out],
        "done": end is not None,
        "log_end": end,
    }
    return Answer(
        kind="StoreAdopt",
        fields=fields,
        head="\n".join(_plan(value, who, handed_over=handed_over)),
        tables=[Table.of("TOPIC QUEUES>", topics)],
        items=topics,
        names=[name for name, _ in value.topics],
        tail="" if end is None else f"adopted; the log ends at {end}",
    )
