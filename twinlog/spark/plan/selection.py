"""Which topics and queues a query means.

Without a word about topics all that users made are meant; RocketMQ's own and ours are system topics
and come with ``includeSystem``, or by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from twinlog.spark.errors import NoTopic, SourceError, nearest
from twinlog.spark.plan.options import Options

_SYSTEM = re.compile(
    r"%RETRY%|%DLQ%|%LMQ%|SCHEDULE_TOPIC_XXXX$|rmq_sys_|RMQ_SYS_|TBW102$|SELF_TEST_TOPIC$"
    r"|OFFSET_MOVED_EVENT$|BenchmarkTest$|CHECKPOINT_TOPIC$"
)


def is_system(topic: str) -> bool:
    """Return whether RocketMQ or twinlog made the topic for itself.

    >>> is_system("%RETRY%group"), is_system("orders")
    (True, False)
    """
    return _SYSTEM.match(topic) is not None


def selected(
    queues: Iterable[tuple[str, int]], options: Options, *, known: Collection[str] | None = None
) -> list[tuple[str, int]]:
    """Return the queues of ``queues`` that the options mean, sorted.

    Args:
        queues: What there is.
        options: What is asked for.
        known: Topics that exist, with or without a queue that holds anything.

    Raises:
        SourceError: A topic or queue that is named does not exist.
    """
    found = sorted(queues)
    topics = {topic for topic, _ in found} | set(known or ())
    if options.subscribe is not None:
        for name in options.subscribe:
            _exists(name, topics)
        return [key for key in found if key[0] in options.subscribe]
    if options.assign is not None:
        wanted = {(name, queue) for name, numbers in options.assign.items() for queue in numbers}
        for name in options.assign:
            _exists(name, topics)
        if known is None:
            for name, queue in sorted(wanted - set(found)):
                there = [str(n) for topic, n in found if topic == name]
                hint = f"it has {', '.join(there)}"
                raise SourceError(f"topic {name} has no queue {queue}", code="queue", hint=hint)
        return [key for key in found if key in wanted]
    meant = {topic for topic in topics if meant_by_name(topic, options)}
    return [key for key in found if key[0] in meant]


def meant_by_name(topic: str, options: Options) -> bool:
    """Return whether a query that names no topics one by one means this one."""
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    return options.include_system or not is_system(topic)


def check_named(queues: Iterable[tuple[str, int]], options: Options) -> None:
    """Refuse starts and ends of queues that are not read: a slip of the pen would mean earliest.

    A queue without a record may not be there yet: its start and end may be named.

    Raises:
        SourceError: A start or end names another topic or queue.
    """
    keys = set(queues)
    topics = {topic for topic, _ in keys}
    begin, end = options.starting_offsets, options.ending_offsets
    for name, table in (
        ("startingOffsets", begin.queues if begin else {}),
        ("endingOffsets", end.queues),
        ("startingOffsetsByTimestamp", options.starting_by_time or {}),
        ("endingOffsetsByTimestamp", options.ending_by_time or {}),
    ):
        for topic, numbers in table.items():
            if topic not in topics:
                text = f"{name} names topic {topic}, which is not read"
                hint = nearest(topic, topics) or f"there are {', '.join(sorted(topics)[:10])}"
                raise SourceError(text, code="topic", hint=hint)
            for queue, number in numbers.items():
                if (topic, queue) not in keys and number > 0:
                    there = ", ".join(str(n) for other, n in sorted(keys) if other == topic)
                    text = f"{name} names queue {queue} of topic {topic}, which is not read"
                    raise SourceError(text, code="queue", hint=f"it has {there}")


def _exists(name: str, topics: Collection[str]) -> None:
    if name not in topics:
        hint = nearest(name, topics)
        if hint is None:
            users = sorted(topic for topic in topics if not is_system(topic))[:10]
            hint = f"there are {', '.join(users)}" if users else "there is no topic at all"
        raise NoTopic(f"there is no topic {name}", hint=hint)
