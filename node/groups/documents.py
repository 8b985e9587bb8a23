"""What GROUP and the status pages show of groups; see `twinlog.wire.groups`.

Made from the confirmed fold, so every node can answer; members' last words are known to the acting
master alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from node.groups.context import Context
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.groups import START_BEGIN, START_END, Group
from storage.messaging.share import LEASED, WAITING, Share
from twinlog.errors import TwinlogError

PAGE_GROUPS = 200
"""Groups in one page of a list."""
SHARES_MAX = 4_096
"""Queues in one document; a group of more shows the first of them."""


def page_of_groups(context: Context, after: str) -> Mapping[str, object]:
    """Return ``groups`` and, unless this is the last page, ``more``."""
    known = [name for name in context.messaging.groups() if name > after]
    names = nsmallest(PAGE_GROUPS, known)
    groups = [
        _summary(context, group)
        for name in names
        if (group := context.messaging.group(name)) is not None
    ]
    return {"groups": groups, "more": names[-1] if len(known) > len(names) else None}


def group_document(context: Context, group: Group) -> Mapping[str, object]:
    """Return one group with its settings, queues and members."""
    queues = [_queue(context, share) for share in _shares(context, group)]
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
        **_summary(context, group),
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


def _shares(context: Context, group: Group) -> Sequence[Share]:
    fold = context.messaging.confirmed
    if group.mode == "shared":
        return list(fold.shares_of(group.name))[:SHARES_MAX]
    found: list[Share] = []
    for member in fold.members(group.name).values():
        found.extend(fold.shares_of(group.name + MEMBER_SIGN + member.name))
    return found[:SHARES_MAX]


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


def lag(share: Share, end: int) -> int:
    """Return how many messages of a queue are not settled."""
    return max(end - share.next, 0) + share.count(LEASED) + share.count(WAITING)


def _leased(context: Context, group: Group) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for share in context.messaging.confirmed.shares_of(group.name):
        for run in share.runs:
            if run.state == LEASED:
                found[run.member] = found.get(run.member, 0) + run.last - run.first + 1
    return found


def _summary(context: Context, group: Group) -> Mapping[str, object]:
    behind = leased = waiting = 0
    topics: set[str] = set()
    for share in _shares(context, group):
        topics.add(share.topic)
        try:
            end = context.records.queue_range(share.topic, share.queue)[1]
        except TwinlogError:
            end = share.next
        behind += lag(share, end)
        leased += share.count(LEASED)
        waiting += share.count(WAITING)
    return {
        "name": group.name,
        "mode": group.mode,
        "topics": sorted(topics),
        "members": len(context.messaging.confirmed.members(group.name)),
        "lag": behind,
        "leased": leased,
        "waiting": waiting,
    }
