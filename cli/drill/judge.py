"""What a history must show: nothing acknowledged lost, doubled or moved; how long writes stopped.

Whether one log explains what clients saw is decided by the checker of ``cli.history``; its kinds of
findings are the first promises here (`HARMS`).  Added to them: *skipped* (a reader left an offset
out, or went back), what was lost that was acknowledged with less than ``confirmed``, refusals, and
write gaps.

A verdict has three values, and so has each promise: *held*, *broken*, or *unknown* with the reason.
A broken promise carries the first counter-examples.  Where a queue was not read to its end, or
nothing was acknowledged, nothing can be held.

Pure.  Not here: recording (``workload``), the promises' numbers (``scenario``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from cli.drill.scenario import Promises
from cli.history.checker import check
from cli.history.operations import CONFIRMED, Operation

EXAMPLES_MAX = 5
"""Counter-examples named for each promise."""


class Outcome(StrEnum):
    """How a promise, or a whole drill, ended."""

    HELD = "held"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Example:
    """One counter-example in words, and when, where that is known."""

    text: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise: what was found."""

    promise: str
    outcome: Outcome
    text: str
    examples: tuple[Example, ...] = ()

    def fields(self) -> dict[str, object]:
        """The finding as machines see it."""
        return {
            "promise": self.promise,
            "outcome": self.outcome.value,
            "text": self.text,
            "examples": [one.text for one in self.examples],
        }


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without an acknowledgement, around the moment of a fault; seconds."""

    fault: str
    at: float
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """From the last acknowledgement before to the first one after."""
        return self.end - self.begin

    @property
    def recovery(self) -> float:
        """From the fault to the first acknowledgement after the silence."""
        return max(0.0, self.end - self.at)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of each; ``harms`` are all findings but the lost ones."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    found: int = 0
    lost: int = 0
    harms: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything a history shows; ``findings`` are those of the history alone."""

    counts: Counts
    gaps: tuple[Gap, ...]
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        """Broken if one promise is; else unknown if one is; else held."""
        return worst(self.findings)


def worst(findings: Sequence[Finding]) -> Outcome:
    """Broken if one promise is; else unknown if one is, or nothing was promised; else held."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.BROKEN in outcomes:
        return Outcome.BROKEN
    return Outcome.UNKNOWN if Outcome.UNKNOWN in outcomes or not outcomes else Outcome.HELD


HARMS: Mapping[str, str] = {
    "lost": "acknowledged messages are missing where they must be seen",
    "duplicate": "messages stand at two places of a queue",
    "disagreement": "places of a queue differ between readers, or from what a sender was answered",
    "order": "messages of one writer are not in the order in which it sent them",
    "phantom": "messages are there that were never sent, or were refused",
    "gap": "places of a queue are held by no message that was sent",
    "not-linearizable": "queues for which no order of events explains all answers",
    "skipped": "reads left offsets out, or went back",
}
"""What each kind of finding means, as the report says it."""


def judge(
    history: Sequence[Operation], promises: Promises, faults: Sequence[tuple[float, str]] = ()
) -> Judgement:
    """Hold a history against its promises.

    Args:
        history: Everything that clients did; at the end settled reads of every queue.
        promises: What must be true.
        faults: When which fault began, for the write gaps.
    """
    verdict = check(history)
    sends = [one for one in history if one.op == "send"]
    ok = [one for one in sends if one.outcome == "ok"]
    last = max((one.end or one.begin for one in sends), default=0.0)
    finals = [one for one in history if is_final(one) and one.begin >= last]
    seen = {(one.topic, one.queue, name) for one in finals for name in one.records}
    missing = [one for one in ok if (one.topic, one.queue, one.records[0]) not in seen]
    if promises.deleted:
        missing = [one for one in missing if not _deleted(one, finals)]
    weak = [one for one in missing if one.ack != CONFIRMED]
    skipped = list(_skipped(history))
    unread = {(one.topic, one.queue) for one in ok} - {(one.topic, one.queue) for one in finals}
    found: dict[str, list[Example]] = {kind: [] for kind in HARMS}
    ends = {one.id: one.end for one in history if one.end is not None}
    for one in verdict.findings:
        moments = [ends[id_] for id_ in one.operations if id_ in ends]
        found[one.kind].append(Example(one.text, min(moments, default=None)))
    found["lost"] += [_missing(one) for one in weak]
    found["skipped"] += skipped
    counts = Counts(
        sent=len(sends),
        acknowledged=len(ok),
        refused=sum(one.outcome == "fail" for one in sends),
        unknown=sum(one.outcome == "unknown" for one in sends),
        found=len(ok) - len(missing),
        lost=len(found["lost"]),
        harms=sum(len(examples) for kind, examples in found.items() if kind != "lost"),
        read=sum(len(one.records) for one in history if one.op == "read" and not one.settled),
    )
    why = ""
    if unread:
        why = "not every queue was read to its end afterwards"
    elif not ok:
        why = "nothing was acknowledged, so nothing was tested"
    elif verdict.unsure:
        why = f"the search for an order of events was given up: {len(verdict.unsure)} queues"
    gaps = tuple(write_gaps(ok, faults))
    findings = [*_harm_findings(found, promises, why)]
    findings += _number_findings(counts, gaps, faults, promises)
    return Judgement(counts, gaps, tuple(findings))


def _deleted(one: Operation, finals: Sequence[Operation]) -> bool:
    """Whether it lies before the first message of its queue that any node still has."""
    starts = [end.start for end in finals if (end.topic, end.queue) == (one.topic, one.queue)]
    return one.offset is not None and bool(starts) and one.offset < min(starts)


def is_final(one: Operation) -> bool:
    """Whether it is a read of a whole queue, after which nothing is missing."""
    return one.op == "read" and one.outcome == "ok" and one.settled


def _missing(one: Operation) -> Example:
    text = (
        f"{one.records[0]}, acknowledged {one.ack} at {_s(one.end)} for "
        f"{one.topic}/{one.queue}@{one.offset} in epoch {one.epoch}, is not there"
    )
    return Example(text, one.end)


def _skipped(history: Sequence[Operation]) -> Iterator[Example]:
    following: dict[tuple[str, str, int], int] = {}
    for read in sorted(history, key=lambda one: one.begin):
        if read.op != "read" or read.settled or not read.records:
            continue
        key = read.client, read.topic, read.queue
        wanted = following.get(key, read.start)
        if read.start != wanted:
            text = (
                f"{read.client} was at offset {wanted} of {read.topic}/{read.queue} and got "
                f"{read.start} at {_s(read.end)}"
            )
            yield Example(text, read.end)
        following[key] = read.start + len(read.records)


def _s(moment: float | None) -> str:
    return "?" if moment is None else f"{moment:.3f} s"


def _harm_findings(
    found: Mapping[str, Sequence[Example]], promises: Promises, why: str
) -> Iterator[Finding]:
    for kind, meaning in HARMS.items():
        number = len(found[kind])
        allowed = promises.lost_max if kind == "lost" else 0
        if allowed is not None and number > allowed:
            examples = tuple(found[kind][:EXAMPLES_MAX])
            yield Finding(kind, Outcome.BROKEN, f"{number} {meaning}", examples)
        elif why:
            yield Finding(kind, Outcome.UNKNOWN, why)
        elif allowed is None:
            yield Finding(kind, Outcome.HELD, f"{number} {kind}: allowed here")
        else:
            yield Finding(kind, Outcome.HELD, "none")


def _number_findings(
    counts: Counts, gaps: Sequence[Gap], faults: Sequence[tuple[float, str]], promises: Promises
) -> Iterator[Finding]:
    if promises.refused_max is not None:
        kept = counts.refused <= promises.refused_max
        text = f"{counts.refused} sends were refused, {promises.refused_max} may be"
        yield Finding("refused", Outcome.HELD if kept else Outcome.BROKEN, text)
    most = promises.write_gap_max
    if most is None:
        return
    if len(gaps) < len(faults) or not gaps:
        yield Finding("write gap", Outcome.UNKNOWN, "no write was acknowledged after a fault")
        return
    longest = max(gaps, key=lambda gap: gap.seconds)
    text = f"writes stopped for {longest.seconds:.2f} s ({longest.fault}), {most:g} s may be"
    if longest.seconds <= most:
        yield Finding("write gap", Outcome.HELD, text)
    else:
        example = Example(
            f"nothing was acknowledged from {_s(longest.begin)} to {_s(longest.end)}", longest.begin
        )
        yield Finding("write gap", Outcome.BROKEN, text, (example,))


def write_gaps(ok: Sequence[Operation], faults: Sequence[tuple[float, str]]) -> Iterator[Gap]:
    """The longest silence between each fault and the next one; a fault without one yields none.

    The silence may begin with the last acknowledgement before the fault.

    >>> ok = [Operation(str(t), "w", "send", "t", 0, t, t, "ok") for t in (1.0, 1.2, 3.0, 3.1)]
    >>> [(round(gap.seconds, 1), round(gap.recovery, 1)) for gap in write_gaps(ok, [(1.1, "kill")])]
    [(1.8, 1.9)]
    """
    ends = sorted(one.end for one in ok if one.end is not None)
    moments = sorted(faults)
    for at, (moment, text) in enumerate(moments):
        until = moments[at + 1][0] if at + 1 < len(moments) else float("inf")
        first = max(0, bisect_left(ends, moment) - 1)
        last = bisect_left(ends, until)
        within = ends[first : last + 1]
        if not within or within[-1] <= moment:
            continue
        pairs = list(pairwise(within)) or [(moment, within[0])]
        begin, end = max(pairs, key=lambda pair: pair[1] - pair[0])
        yield Gap(text, moment, begin, end)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of them lie, by rank; None without values.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([1.0, 2.0], 0.99), quantile([], 0.5)
    (2.0, 2.0, None)
    """
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
