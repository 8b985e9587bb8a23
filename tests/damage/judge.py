"""Opens a damaged store and says how it ended; anything it may not do is a `Wrong`.

A store ends in one of these ways:

* *unharmed*: everything is as it was, and nothing had to be mended;
* *repaired*: everything is as it was, and the file was made anew from what is redundant;
* *tail cut*: batches behind the flushed offset are gone, nothing else;
* *quarantined*: the start found damage below the flushed offset and names file and offset;
* *found by reading*: the start did not look there; a read or `verify` names file and offset, and
  what can be read is right;
* *refused*: the start ends with an error that says which file;
* *keys hidden*: of the key index only, where its check sums (ours, RocketMQ's format has none) are
  gone too: a damaged file whose bytes still hold together as chains gives fewer records for a key.
  `twinlog log verify` compares it with the log and `twinlog log repair` builds it anew.

Never: a wrong record, another exception than those of the store, a second start that ends another
way than the first for no reason, silent loss below the flushed offset.

Not here: the damage (`tests.damage.corrupter`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from storage import Store
from storage.errors import IndexBehind
from storage.key_index.search import KeyQuery
from tests.damage.corrupter import Hurt
from tests.fakes.disk import FakeDisk
from tests.stores.histories.history import BatchHistory, Border, key
from tests.stores.workbench import find_key, keys_of, log_records, master, open_store
from twinlog.errors import CorruptionError, TwinlogError
from twinlog.format.inner_batches import is_inner_batch
from twinlog.format.record import decode

UNHARMED, REPAIRED, TAIL_CUT = "unharmed", "repaired", "tail cut"
QUARANTINED, READING, REFUSED = "quarantined", "found by reading", "refused"
HIDDEN = "keys hidden"
OUTCOMES = (UNHARMED, REPAIRED, TAIL_CUT, QUARANTINED, READING, REFUSED, HIDDEN)
KEYS = ("k0", "k1", "k2-1", "none")
Place = tuple[str, int, int]


class Hidden(Exception):
    """A key finds fewer records than it should, and nobody says so."""


class Wrong(AssertionError):
    """A store did what it may never do."""


@dataclass(frozen=True)
class Original:
    """A store before the damage, and what it held.

    Attributes:
        name: How it was stopped.
        disk: Its files; never opened again, only copied.
        log: Its batches.
        flushed: What a power loss would have left.
        bodies: Confirmed records by topic, queue and queue offset.
        keys: Log offsets by key.
        ranges: First and next queue offset by topic and queue.
    """

    name: str
    disk: FakeDisk
    log: list[Border]
    flushed: int
    bodies: dict[Place, bytes]
    keys: dict[str, list[int]]
    ranges: dict[tuple[str, int], tuple[int, int]]


def _original(name: str, disk: FakeDisk, store: Store, end: Callable[[], None]) -> Original:
    log = [key(one) for one in store.entries(store.start, max_bytes=1 << 30)]
    records = log_records(store)
    bodies = {(one.topic, one.queue, one.queue_offset): one.body for one in records}
    mine = [one for one in records if one.topic == "flights"]
    keys = {word: [one.log_offset for one in mine if word in keys_of(one)] for word in KEYS}
    ranges = {
        (topic, queue): store.reads.queue_range(topic, queue)
        for topic, count in store.reads.topics().items()
        for queue in range(count)
    }
    flushed = store.flushed
    end()
    disk.crash(keep_page_cache=True, rng=Random(1))
    return Original(name, disk, log, flushed, bodies, keys, ranges)


def originals() -> list[Original]:
    """A store stopped cleanly, one that was killed, one that let files go and was killed."""
    found: list[Original] = []
    for name in ("stopped", "killed", "trimmed"):
        disk = FakeDisk(page_size=512)
        history = BatchHistory(disk)
        store = history.store = master(disk)
        history.note()
        for number in range(14):
            history.step(number)
        history.cut()
        for number in range(14, 28):
            history.step(number)
        if name == "trimmed":
            history.retain(erase=False)
        history.restart(clean=name != "killed")
        # steps 31 and 32 flush nothing: the killed one has a tail that a power loss may take
        for number in range(28, 33 if name == "killed" else 31):
            history.step(number)
        store = history.store
        closes = name == "stopped"
        if closes:
            store.set_confirm(store.end)
            while store.dispatch(1 << 20):
                pass

        def end(store: Store = store, closes: bool = closes) -> None:
            if closes:
                store.close(clean=True)

        made = _original(name, disk, store, end)
        if closes:
            made = Original(
                name, disk, made.log, made.log[-1][0] + made.log[-1][1], made.bodies, made.keys,
                made.ranges,
            )  # fmt: skip
        found.append(made)
    return found


def judge(original: Original, disk: FakeDisk, hurt: Hurt) -> str:
    """Return how the damaged store in ``disk`` ends.

    Raises:
        Wrong: It did what it may never do.
    """
    first = _open(original, copy.deepcopy(disk), hurt)
    again = copy.deepcopy(disk)
    outcome = _open(original, again, hurt)
    if outcome != first:
        raise Wrong(f"{first} at one start, {outcome} at another of the same files")
    third = _open(original, again, hurt)
    calm = (UNHARMED, REPAIRED, TAIL_CUT, HIDDEN)
    if (outcome in calm) != (third in calm):
        raise Wrong(f"{outcome}, and {third} at the next start")
    return outcome


def _open(original: Original, disk: FakeDisk, hurt: Hurt) -> str:
    try:
        store = open_store(disk)
    except TwinlogError as error:
        _says_where(error, hurt)
        return REFUSED
    except Exception as error:
        raise Wrong(f"the start ended with {type(error).__name__}: {error}") from error
    try:
        return _look(original, store, disk, hurt)
    except Hidden as hidden:
        if hurt.kind != "key index":
            raise Wrong(str(hidden)) from hidden
        return HIDDEN
    finally:
        store.close(clean=True)


def _says_where(error: TwinlogError, hurt: Hurt) -> None:
    told = f"{error.text} {error.facts.get('file', '')}"
    name = hurt.path.rpartition("/")[2]
    if name not in told and hurt.path not in told:
        raise Wrong(f"refused without naming {hurt.path}: {error.text}")


def _look(original: Original, store: Store, disk: FakeDisk, hurt: Hurt) -> str:
    """Compare an open store with what it was."""
    damage = store.damage
    if damage is not None and not damage.file:
        raise Wrong(f"quarantined without a file: {damage}")
    log = [key(one) for one in store.entries(store.start, max_bytes=1 << 30)]
    known = [one for one in original.log if one[0] >= store.start]
    if log != known[: len(log)]:
        raise Wrong("its batches are not those it had")
    if damage is None and store.end < original.flushed:
        raise Wrong(f"ends at {store.end}, {original.flushed} were flushed, and nothing is said")
    found = damage is not None
    if damage is None:
        while store.dispatch(1 << 20):
            pass
    found |= _read(original, store)
    found |= _ask(original, store, partial=store.end < original.log[-1][0] or found)
    if damage is not None:
        return QUARANTINED
    try:
        store.verify(store.start, store.end)
    except CorruptionError as error:
        if "file" not in error.facts:
            raise Wrong(f"verify names no file: {error.text}") from error
        found = True
    if found:
        return READING
    if len(log) < len(known):
        return TAIL_CUT
    mended = disk.peek(hurt.path)
    if hurt.before is None or (mended is not None and bytes(mended) != hurt.before):
        return UNHARMED
    return REPAIRED


def _read(original: Original, store: Store) -> bool:
    """Read every queue to its end; True when a read named damage."""
    found = False
    topics = store.reads.topics()
    for (topic, queue), (first, end) in original.ranges.items():
        if topic not in topics:
            if store.damage is None:
                raise Wrong(f"topic {topic} is gone and nothing is said")
            continue
        try:
            found |= _read_queue(original, store, (topic, queue), (first, end))
        except CorruptionError as error:
            if "file" not in error.facts and error.offset is None:
                raise Wrong(f"a read names no place: {error.text}") from error
            found = True
    return found


def _read_queue(
    original: Original, store: Store, queue: tuple[str, int], was: tuple[int, int]
) -> bool:
    start, end = store.reads.queue_range(*queue)
    if store.damage is None and store.end >= original.flushed:
        least = was[1] if store.confirm >= original.log[-1][0] + original.log[-1][1] else start
        if start > was[0] or end < least:
            raise Wrong(f"{queue} was {was}, is {start} to {end}, and nothing is said")
    at = start
    while at < end:
        answer = store.reads.read(*queue, at, max_bytes=4000, max_records=100)
        if not answer.slices:
            raise Wrong(f"{queue} answers {answer.status} at {at}, its range ends at {end}")
        for view in answer.slices:
            offset = 0
            while offset < len(view):
                one = decode(view, offset)
                if original.bodies.get((*queue, at), one.body) != one.body:
                    raise Wrong(f"{queue} at {at} serves another record")
                if (one.topic, one.queue, one.queue_offset) != (*queue, at):
                    raise Wrong(f"{queue} at {at} serves {one.topic}/{one.queue_offset}")
                offset += one.size
                at += int(one.properties["INNER_NUM"]) if is_inner_batch(one) else 1
    return False


def _ask(original: Original, store: Store, *, partial: bool) -> bool:
    """Look for keys; True when a query named damage."""
    if "flights" not in store.reads.topics():
        return False
    for word, was in original.keys.items():
        query = KeyQuery("flights", word, most=1000)
        try:
            try:
                answer = find_key(store, query)
            except IndexBehind:  # a file of it is bad and was put aside: it is built anew
                if store.damage is None:
                    while store.dispatch(1 << 20):
                        pass
                answer = find_key(store, query)
        except IndexBehind:
            if not partial:
                raise Wrong("the key index is not built although nothing hinders it") from None
            return False
        except CorruptionError:
            return True
        got = [decode(view).log_offset for view in answer.slices]
        wrong = [at for at in got if at not in was and at <= original.log[-1][0]]
        if wrong:
            raise Wrong(f"key {word} finds {wrong}")
        kept = {at for at in was if store.start <= at < store.confirm}
        if not partial and answer.complete and not kept <= set(got):
            raise Hidden(f"key {word} misses {sorted(kept - set(got))} and says it is complete")
    return False
