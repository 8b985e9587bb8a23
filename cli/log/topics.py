"""Which topics and queues a store directory has, for commands that are given one by name.

An unknown name is a mistake, not an answer without records: exit 66 with the nearest name. A topic
without a record is known all the same where ``topics.json`` has it. Where damage may hide its
records it is unknown whether the topic exists: exit 2.

Not here: the names themselves (``twinlog.store.find``), topics of a cluster
(``cli.topic``).
"""

from __future__ import annotations

from cli.failures import Exit, Failure, nearest
from twinlog.store import find
from twinlog.store.reader import StoreReader

NUMBERS = 10
"""Most queue numbers that an error lists."""


def lost_bytes(store: StoreReader) -> int:
    """Return how many bytes of the log cannot be read and may hold records."""
    return sum(piece.length for piece in store.damage if piece.hides)


def require(store: StoreReader, topic: str | None, queue: int | None = None) -> None:
    """Raise when a store has no such topic, or no queue of that number; None stands for each.

    To be asked when nothing was found: the log is read through for a name that no queue has.

    Raises:
        Failure: It is missing (exit 66), or missing from the readable part of a damaged log (2).
    """
    if topic is None and queue is None:
        return
    known = find.places(store)
    if _fits(known, topic, queue):
        return
    known |= find.places_in_log(store)
    if _fits(known, topic, queue):
        return
    where, names = store.name, sorted({name for name, _ in known})
    hints, facts = [f"see: twinlog log info {where} --queues"], list[str]()
    if topic is not None and topic not in names:
        what = f'there is no topic "{topic}" in {where}'
        hints = [*nearest(topic, names), *hints]
    else:
        of_it = f' of topic "{topic}"' if topic is not None else ""
        what, facts = f"there is no queue {queue}{of_it} in {where}", _numbers(known, topic)
    if lost := lost_bytes(store):
        what = f"{what}, but {lost} bytes of it cannot be read"
        raise Failure(Exit.UNDECIDED, what, hints=(f"see: twinlog log verify {where}",))
    raise Failure(Exit.MISSING, what, facts=facts, hints=hints)


def _fits(known: set[tuple[str, int]], topic: str | None, queue: int | None) -> bool:
    return any(topic in (None, name) and queue in (None, number) for name, number in known)


def _numbers(known: set[tuple[str, int]], topic: str | None) -> list[str]:
    """A fact that names the queues there are."""
    numbers = sorted({number for name, number in known if topic in (None, name)})
    told = ", ".join(str(number) for number in numbers[:NUMBERS])
    more = f" and {len(numbers) - NUMBERS} more" if len(numbers) > NUMBERS else ""
    return [f"there are {told}{more}"] if numbers else []
