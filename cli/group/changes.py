"""``twinlog group create``, ``alter`` and ``delete``: which groups there are, and how they retry.

Not here: positions (`cli.group.positions`).
"""

from __future__ import annotations

import time
from typing import Annotated

from cli.answer import Answer
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, flag, table, tables, whole
from cli.group.answers import document, settings_of
from cli.group.views import members_of
from cli.parsing import PRIVATE, Yes
from twinlog.client.blocking import Client
from twinlog.errors import GroupDiffers
from twinlog.groups.settings import filter_text
from twinlog.ranges import RangeError, parse_range
from twinlog.units import UnitError, parse_duration
from twinlog.wire.frames import Type
from twinlog.wire.groups import MODES

HOW = {
    "shared": "each message to one member",
    "ordered": "each message to one member, each queue in order",
    "broadcast": "each message to every member",
}
"""What the modes mean, in a line."""


def create(
    name: str,
    /,
    *,
    mode: str = "shared",
    start: str = "end",
    attempts: int | None = None,
    retry: str | None = None,
    invisible: str | None = None,
    dead_letter: bool = True,
    topic: str | None = None,
    tag: str | None = None,
    where: str | None = None,
    dry_run: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Create a group; harmless when it exists with such settings.

    In a ``shared`` group each message is handled by one member, and messages of one queue may be
    handled at the same time. In an ``ordered`` group those of one queue are handled one after the
    other. In a ``broadcast`` group each named member handles all of them.

    Args:
        name: Letters, digits, ``-``, ``_``, ``%`` and ``|``, at most 120.
        mode: ``shared``, ``ordered`` or ``broadcast``.
        start: Where it begins: ``end`` (what is sent from now on), ``start``, or a time as
            ``@2026-11-21T10:00Z`` or ``@-1h``.
        attempts: How often a message is handed out before it is a dead letter.
        retry: Pauses after failed attempts, as ``10s,30s,1m``; the last one repeats.
        invisible: How long a lease is, where a member does not say, as ``30s``.
        dead_letter: Keep what is given up in ``%DLQ%NAME``; or ``--no-dead-letter``: drop it.
        topic: The topic that ``--tag`` or ``--where`` is about.
        tag: Handle only messages of that topic with this tag; several as ``"a || b"``.
        where: Handle only messages of that topic whose properties match; see message read.
        dry_run: Only say what would happen.
    """
    settings = _settings(
        attempts=attempts, retry=retry, invisible=invisible, topic=topic, tag=tag, where=where
    )
    settings |= {"mode": _mode(mode), "start": _start(start), "dead_letter": dead_letter}
    with waiting_client(context) as client:
        existing = settings_of(client, name)
        outcome = "would be created" if existing is None else "exists"
        if existing is not None:
            _same(name, existing, settings)
        if not dry_run:
            outcome = _created(client, name, settings)
    head = f"group {name}, {HOW[mode]}: {outcome}"
    return _say(context, "GroupCreate", name, head, outcome=outcome, more=settings)


def _created(client: Client, name: str, settings: Fields) -> str:
    fields = {"op": "create", "name": name, "settings": settings}
    try:
        answer = client.call("master", Type.GROUP, fields)
    except GroupDiffers as error:
        hints = (f"look at it: twinlog group show {name}",)
        raise Failure(Exit.NO, f"{error.text}; nothing was changed", hints=hints) from None
    return "created" if flag(answer.fields, "changed") else "exists"


def _same(name: str, existing: Fields, settings: Fields) -> None:
    """Refuse to create a group that exists otherwise (exit 1); its start has passed."""
    for key, value in settings.items():
        if key != "start" and key in existing and existing[key] != value:
            text = f"{name} exists with {key} {existing[key]}, not {value}; nothing was changed"
            hint = f"change it: twinlog group alter {name}"
            raise Failure(Exit.NO, text, hints=(hint,))


def alter(
    name: str,
    /,
    *,
    mode: str | None = None,
    attempts: int | None = None,
    retry: str | None = None,
    invisible: str | None = None,
    dead_letter: bool | None = None,
    topic: str | None = None,
    tag: str | None = None,
    where: str | None = None,
    dry_run: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Change the settings of a group; what is not named stays as it is.

    Args:
        name: Its name.
        mode: ``shared`` or ``ordered``, while the group has no members; ``broadcast`` is for good.
        attempts: How often a message is handed out before it is a dead letter.
        retry: Pauses after failed attempts, as ``10s,30s,1m``; the last one repeats.
        invisible: How long a lease is, where a member does not say, as ``30s``.
        dead_letter: Keep what is given up in ``%DLQ%NAME``, or drop it.
        topic: The topic that ``--tag`` or ``--where`` is about.
        tag: Handle only messages of that topic with this tag; several as ``"a || b"``.
        where: Handle only messages of that topic whose properties match; see message read.
        dry_run: Only say what would change.
    """
    settings = _settings(
        attempts=attempts, retry=retry, invisible=invisible, topic=topic, tag=tag, where=where
    )
    if mode is not None:
        settings["mode"] = _mode(mode)
    if dead_letter is not None:
        settings["dead_letter"] = dead_letter
    if not settings:
        raise Failure(Exit.USAGE, "group alter needs a setting to change")
    with waiting_client(context) as client:
        before = table(document(client, name).get("settings"))
        changes = [f"{key}: {before.get(key)} -> {value}" for key, value in settings.items()
                   if before.get(key) != value]  # fmt: skip
        outcome = "unchanged" if not changes else "would be changed" if dry_run else "changed"
        if changes and not dry_run:
            client.call("master", Type.GROUP, {"op": "alter", "name": name, "settings": settings})
    head = f"group {name}: {outcome}" + "".join(f"\n  {one}" for one in changes)
    return _say(context, "GroupAlter", name, head, outcome=outcome, more=settings)


def delete(
    name: str,
    /,
    *,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Delete a group with its positions; messages, and its dead letters, stay.

    Args:
        name: Its name.
        dry_run: Only say what is lost.
        yes: Do not ask.
    """
    with waiting_client(context) as client:
        found = document(client, name)
        people, lag = tables(found.get("people")), whole(found, "lag") or 0
        head = (
            f"{name} has {members_of(people)} and {lag} messages to handle.\n"
            "Its positions are lost; the messages stay, and so do its dead letters."
        )
        outcome = "would be deleted"
        if not dry_run:
            context.printer.note(head)
            if not context.confirm(f"Delete group {name}?", yes=yes):
                return Exit.NO
            client.call("master", Type.GROUP, {"op": "delete", "name": name})
            outcome = "deleted"
            head = f"group {name}: {outcome}"
    fields: Fields = {"members": len(people), "lag": lag}
    return _say(context, "GroupDelete", name, head, outcome=outcome, more=fields)


def _say(context: Context, kind: str, name: str, head: str, *, outcome: str, more: Fields) -> int:
    fields: Fields = {"group": name, "outcome": outcome, **more}
    names, following = [f"group/{name}"], f"twinlog group show {name}"
    if kind == "GroupDelete":
        following = "twinlog group list"
    context.printer.answer(Answer(kind=kind, fields=fields, head=head, names=names, next=following))
    return Exit.OK


# ── settings ────────────────────────────────────────────────────────────────────────────────────


_CONSUME = "twinlog message consume {} --group GROUP"


def _settings(
    *, attempts: int | None, retry: str | None, invisible: str | None, topic: str | None,
    tag: str | None, where: str | None,
) -> Fields:  # fmt: skip
    """Return the settings that were named, as a node takes them."""
    found: Fields = {}
    if attempts is not None:
        if attempts < 1:
            raise Failure(Exit.USAGE, f"--attempts is {attempts}; it must be at least 1")
        found["attempts"] = attempts
    if retry is not None:
        found["retry"] = [_ms("--retry", word) for word in retry.split(",")]
    if invisible is not None:
        found["invisible_ms"] = _ms("--invisible", invisible)
    if tag is not None or where is not None:
        if topic is None:
            raise Failure(Exit.USAGE, "--tag and --where need --topic: the topic they are about")
        found["filters"] = {topic: filter_text(tag, where) or ""}
    elif topic is not None:
        hints = (
            f"a group has no topics of its own: its members name them, as {_CONSUME.format(topic)}",
            f"to handle only some messages of {topic}, add --tag or --where",
        )
        text = "--topic says which topic --tag or --where is about"
        raise Failure(Exit.USAGE, text, hints=hints)
    return found


def _ms(option: str, word: str) -> int:
    try:
        return round(parse_duration(word.strip()) * 1000)
    except UnitError as error:
        text = f'{option} has "{word}", which is not a duration'
        raise Failure(Exit.USAGE, text, hints=(error.hint,)) from None


def _mode(word: str) -> str:
    if word in MODES:
        return word
    raise Failure(Exit.USAGE, f'--mode is "{word}"; there are {", ".join(MODES)}')


def _start(word: str) -> str | int:
    if word in ("start", "end"):
        return word
    try:
        at = parse_range(f"{word}:").first.at_ms(time.time_ns() // 1_000_000)
    except RangeError:
        at = None
    if at is None:
        hints = ("write start, end, @2026-11-21T10:00Z or @-1h",)
        raise Failure(Exit.USAGE, f'--start is "{word}", which is not a place', hints=hints)
    return at
