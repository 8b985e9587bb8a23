"""What GROUP and the status pages show of groups; see `twinlog.wire.groups`.

Made from the confirmed fold, so every node can answer; members' last words are known to the acting
master alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from node.groups.backlog import Ends, Unbegun, lag, shares_of, topics_of, unbegun
from node.turns.context import Context
from node.turns.parked import Asker
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.groups import START_BEGIN, START_END, Group
from storage.messaging.share import LEASED, WAITING, Share
from twinlog.errors import TwinlogError

PAGE_GROUPS = 200
"""Groups in one page of a list, at most."""
PAGE_QUEUES = 1_024
"""A page ends with the group that brings its queues to this number: it is made in one turn of the
loop."""


def page_of_groups(
    context: Context, after: str, asker: Asker | None = None
) -> Mapping[str, object]:
    """Return ``groups`` that ``asker`` sees and, unless this is the last page, ``more``."""
    known = [name for name in context.messaging.groups() if name > after]
    if asker is not None:
        known = [name for name in known if asker.sees("group", name)]
    groups: list[Mapping[str, object]] = []
    ends, queues, looked = Ends(context.records), 0, 0
    names = nsmallest(PAGE_GROUPS, known)
    for name in names:
        looked += 1
        group = context.messaging.group(name)
        if group is not None:
            document, count = _summary(context, group, ends)
            groups.append(document)
            queues += count
        if queues >= PAGE_QUEUES:
            break
    return {"groups": groups, "more": names[looked - 1] if len(known) > looked else None}


def group_document(context: Context, group: Group) -> Mapping[str, object]:
    """Return one group with its settings, queues and members."""
    queues = [_queue(context, share) for share in shares_of(context, group)]
    queues += [_unbegun(one) for one in unbegun(context, group)]
    leased = _leased(context, group)
    people: list[Mapping[str, object]] = []
    now = context.seconds()
    for member in context.messaging.confirmed.members(group.name).values():
        session = context.members.get(group.name, member.id)
        heard = None if session is None or session.peer is None else now - session.heard_at
        people.append(
            {
                "member": member.id,
                "name": member.name,
                "address": session.address if session is not None else "",
                "since_ms": member.since,
                "heard_ms": None if heard is None else round(heard * 1000),
                "leased": leased.get(member.id, 0),
            }
        )
    return {
        **_summary(context, group, Ends(context.records))[0],
        "settings": settings_document(group),
        "queues": queues,
        "people": people,
    }


def settings_document(group: Group) -> dict[str, object]:
    """Return a definition as GROUP ``create`` takes it."""
    names = {START_END: "end", START_BEGIN: "start"}
    retry = list(group.retry.delays_ms)
    growing = {"growing": [*retry, group.retry.factor]} if group.retry.factor else {"retry": retry}
    return {
        "mode": group.mode,
        "start": names.get(group.start, group.start),
        "attempts": group.attempts,
        **growing,
        "invisible_ms": group.invisible_ms,
        "dead_letter": group.dead_letter,
        "filters": dict(group.filters),
    }


def _queue(context: Context, share: Share) -> Mapping[str, object]:
    try:
        start, end = context.records.queue_range(share.topic, share.queue)
    except TwinlogError:  # the topic is not there: what is left of it shows
        start, end = share.low, share.next
    _, _, name = share.group.partition(MEMBER_SIGN)
    return {
        "topic": share.topic,
        "queue": share.queue,
        "name": name,
        "share": share.id,
        "low": share.low,
        "next": share.next,
        "start": start,
        "end": end,
        "lag": lag(share, end),
        "leased": share.count(LEASED),
        "waiting": share.count(WAITING),
        "runs": len(share.runs),
    }


def _unbegun(one: Unbegun) -> Mapping[str, object]:
    """A queue as `_queue` shows it; 0 is no share's number."""
    first = max(one.first, one.start)
    return {
        "topic": one.topic, "queue": one.queue, "name": "", "share": 0, "low": first,
        "next": first, "start": one.start, "end": one.end, "lag": one.lag, "leased": 0,
        "waiting": 0, "runs": 0,
    }  # fmt: skip


def _leased(context: Context, group: Group) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for share in context.messaging.confirmed.shares_of(group.name):
        for run in share.runs:
            if run.state == LEASED:
                found[run.member] = found.get(run.member, 0) + run.last - run.first + 1
    return found


def _summary(context: Context, group: Group, ends: Ends) -> tuple[Mapping[str, object], int]:
    """Return what a list shows of a group, and how many queues that took to look at."""
    behind = leased = waiting = 0
    shares, others = shares_of(context, group), list(unbegun(context, group))
    for share in shares:
        behind += ends.lag(share)
        if share.runs:
            leased += share.count(LEASED)
            waiting += share.count(WAITING)
    for one in others:
        behind += one.lag
    found = {
        "name": group.name,
        "mode": group.mode,
        "topics": sorted(topics_of(context, group)),
        "members": len(context.messaging.confirmed.members(group.name)),
        "lag": behind,
        "leased": leased,
        "waiting": waiting,
    }
    return found, len(shares) + len(others)
