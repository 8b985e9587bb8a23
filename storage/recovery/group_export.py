"""Exports for RocketMQ: groups and their positions, in the files of ``config``.

``subscriptionGroup.json`` has the groups; ``consumerOffset.json`` and ``lmqConsumerOffset.json``
have, for each queue, the offset of the first message that is not settled: a broker loses nothing,
and gives out again what was settled after it. Members of broadcast groups keep their positions
themselves in RocketMQ, so theirs are not there; where they begin is. A broker with ``enableLmq``
reads the second file of positions and ignores the first; so both are whole.
Of RocketMQ's own groups ``CID_RMQ_SYS_TRANS`` has positions, so that a broker asks about open
transactions alone. ``consumerOrderInfo.json`` is empty.

twinlog writes them and never reads them, but at an adoption (`storage.tools.adopt_groups`). Pure.

Not here: when they are written (`storage.recovery.config_export`).

Sources: RocketMQ 5.3 (``ConsumerOffsetManager``, ``LmqConsumerOffsetManager``,
``SubscriptionGroupManager``, ``CustomizedRetryPolicy``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.groups import Group, Retry
from twinlog.format.light_queues import LIGHT_PREFIX

GROUPS = "config/subscriptionGroup.json"
POSITIONS = "config/consumerOffset.json"
LIGHT_POSITIONS = "config/lmqConsumerOffset.json"
ORDERS = "config/consumerOrderInfo.json"
SKIPPED_DELAYS_MS = (1_000, 5_000)
"""Delays of RocketMQ's table that no retry uses: it begins with the third."""

WRITER = "writer", "twinlog"
"""A field of both files of positions and what it says: a broker reads one of them and, not knowing
the field, writes that one without it. What still has the field then is older."""

BROADCAST = "@broadcast"
"""After a group's name: where members of a broadcast group begin that know no better."""

Position = tuple[str, str, int, int]
"""(topic, group, queue, queue offset)."""


def group_files(
    groups: Iterable[Group], positions: Iterable[Position], *, changes: int, timestamp: int
) -> dict[str, bytes]:
    """Return the files by their paths.

    Args:
        groups: All groups.
        positions: Of all their queues.
        changes: Grows with each change.
        timestamp: Of the newest record, ms.
    """
    groups = tuple(groups)
    broadcast = {one.name for one in groups if one.mode == "broadcast"}
    version = {"counter": changes, "stateVersion": 0, "timestamp": timestamp}
    name, said = WRITER
    offsets: dict[str, dict[str, int]] = {}
    plain: dict[str, dict[str, int]] = {}
    light: dict[str, int] = {}
    for topic, group, queue, offset in positions:
        if MEMBER_SIGN in group:
            continue
        key = f"{topic}@{group}{BROADCAST if group in broadcast else ''}"
        offsets.setdefault(key, {})[str(queue)] = offset
        if not group.startswith(LIGHT_PREFIX):
            plain.setdefault(key, {})[str(queue)] = offset
        elif not queue:
            light[key] = offset
    return {
        GROUPS: _json({
            "dataVersion": version, "forbiddenTable": {},
            "subscriptionGroupTable": {one.name: _group(one) for one in groups},
        }),
        POSITIONS: _json({"dataVersion": version, name: said, "offsetTable": offsets}),
        LIGHT_POSITIONS: _json({
            "dataVersion": version, name: said, "lmqOffsetTable": light, "offsetTable": plain,
        }),
        ORDERS: _json({"table": {}}),
    }  # fmt: skip


def _group(one: Group) -> Mapping[str, object]:
    return {
        "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
        "consumeFromMinEnable": True, "consumeMessageOrderly": one.mode == "ordered",
        "consumeTimeoutMinute": 15,
        "groupName": one.name, "groupRetryPolicy": _policy(one.retry), "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": one.attempts,
        "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
    }  # fmt: skip


def _policy(retry: Retry) -> Mapping[str, object]:
    if retry == Retry():
        return {"type": "CUSTOMIZED"}
    if retry.factor:
        first, longest = retry.delays_ms
        growing = {"initial": first, "max": longest, "multiplier": retry.factor}
        return {"exponentialRetryPolicy": growing, "type": "EXPONENTIAL"}
    table = {"next": [*SKIPPED_DELAYS_MS, *retry.delays_ms]}
    return {"customizedRetryPolicy": table, "type": "CUSTOMIZED"}


def _json(value: object) -> bytes:
    return json.dumps(value, indent="\t", sort_keys=True).encode() + b"\n"
