"""POP in a turn: new requests, repeated ones, those that are parked; and their answers.

A POP is known by (member, number). Repeated it gets what it still has, at once; a number that was
not seen in this reign is looked for among the leases that an earlier reign left.

The answer leaves when the lease is confirmed (or appended, if the client wants it so); records that
lie on the disk are fetched in a thread then. What a filter leaves out of them is settled
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from node.clients.lookups import Answer, Asked
from node.groups.context import Context, Done, Turn
from node.groups.parked import Asker, Pop
from node.groups.requests import parse_pop
from node.leases.leasing import Handed, Part, Wish, stretches
from node.leases.ordering import part_of
from storage.read.lookups import OffLoopLookup
from storage.read.result import ReadResult
from twinlog.errors import Busy, TwinlogError
from twinlog.format.group_rows import LEFT_OUT, GivenUpRow

Fetch = Callable[[Asked[Any], Asker, Done], None]
"""Has records fetched in a thread, then answered."""


class Pops:
    """See the module.

    Args:
        context: The node.
        later: Puts a decision into the next turn.
        fetch: Fetches records that are cold.
        epoch: Sent with answers.
    """

    def __init__(
        self,
        context: Context,
        later: Callable[[Callable[[Turn], None]], None],
        fetch: Fetch,
        epoch: Callable[[], int],
    ) -> None:
        self._context = context
        self._later = later
        self._fetch = fetch
        self._epoch = epoch
        self._tops: dict[str, int] = {}

    def pop(self, fields: Mapping[str, object], asker: Asker, done: Done, turn: Turn) -> None:
        """Hand messages out, or park the request.

        Raises:
            TwinlogError: Why not; nothing was decided.
        """
        context, name = self._context, str(fields["group"])
        group = context.group(name)
        session = context.session(name, cast("int", fields["member"]), asker)
        asked = parse_pop(fields, context.limits, group.invisible_ms)
        session.heard_at = turn.now
        wish, known = asked.wish, session.pop
        pop = Pop(
            asker, session, group, wish, turn.now, turn.now + asked.wait, asked.fast, asked.places
        )
        pop.answer = partial(self._answer, pop, done)
        session.pop = max(known, wish.pop)
        if wish.pop <= known or not known:
            if wish.pop == known:
                self._displace(pop)
            handed = turn.leasing.find(group, wish)
            if handed.parts or wish.pop < known:
                self._hand(pop, handed, turn)
                return
        if context.records.closed():
            self._check_open(wish)
        if group.mode == "ordered":
            if name in context.freed or name in turn.stirred:
                self.serve(name, turn)  # a queue that is free is for those who wait already
            pop.wish = wish = self._within(pop)
        handed = turn.leasing.hand_out(group, wish)
        if handed.parts or pop.deadline <= turn.now:
            self._hand(pop, handed, turn)
        else:
            self._park(pop, turn)

    def _check_open(self, wish: Wish) -> None:
        for topic in wish.topics:
            self._context.records.check_open(topic)

    def _displace(self, pop: Pop) -> None:
        """The same request is parked already: the newer one takes its place."""
        for other in self._context.parked.of(pop.session):
            if other.wish.pop == pop.wish.pop:
                self._context.parked.remove(other)
                other.answer(Busy("the same POP came again", limit="pops_parked_max"))

    def _park(self, pop: Pop, turn: Turn) -> None:
        limits = self._context.limits
        if pop.session.parked >= limits.pops_parked_max:
            text = f"{pop.session.parked} pops of this member wait already (pops_parked_max)"
            raise Busy(text, limit="pops_parked_max")
        self._context.parked.add(pop)

    # ── parked ones ─────────────────────────────────────────────────────────────────────────────

    def stirred(self) -> set[str]:
        """Return the groups whose topics grew since the last call, of those with parked pops."""
        found: set[str] = set()
        tops: dict[str, int] = {}
        for group in self._context.parked.groups():
            for topic in {
                topic for pop in self._context.parked.line(group) for topic in pop.wish.topics
            }:
                if topic not in tops:
                    tops[topic] = self._top(topic)
                if self._tops.get(topic) != tops[topic]:
                    found.add(group)
        self._tops = tops
        return found

    def _top(self, topic: str) -> int:
        records = self._context.records
        queues = records.queues(topic) or 0
        return sum([records.queue_range(topic, queue)[1] for queue in range(queues)])

    def serve(self, group: str, turn: Turn) -> None:
        """Serve the parked pops of a group, first come first served, while there are messages."""
        empty: set[tuple[int, tuple[str, ...]]] = set()
        for pop in self._context.parked.line(group):
            if self._alike(pop) in empty or pop.asker.gone or pop.asker.congested:
                continue
            definition = self._context.messaging.standing(group)
            if definition is None:
                self._context.parked.remove(pop)
                pop.answer(self._context.unknown(group))
                continue
            try:
                if self._context.records.closed():
                    self._check_open(pop.wish)
                handed = turn.leasing.hand_out(definition, self._within(pop))
            except TwinlogError as error:
                self._context.parked.remove(pop)
                pop.answer(error)
                continue
            if not handed.parts:
                empty.add(self._alike(pop))
                continue
            self._context.parked.remove(pop)
            self._hand(pop, handed, turn)

    def _alike(self, pop: Pop) -> tuple[int, tuple[str, ...]]:
        """Return what pops have in common that get nothing where one of them got nothing."""
        return pop.wish.member if pop.group.mode == "ordered" else 0, pop.wish.topics

    def _within(self, pop: Pop) -> Wish:
        """Return the wish, with how many queues of an ordered group the member may have now."""
        context, wish = self._context, pop.wish
        if pop.group.mode != "ordered":
            return wish
        waiting = context.parked.line(pop.group.name)
        if all(other.session is pop.session for other in waiting):
            return replace(wish, queues=0)
        queues = sum(context.records.queues(topic) or 0 for topic in wish.topics)
        return replace(wish, queues=part_of(queues, len(context.members.of(pop.group.name))))

    # ── answers ─────────────────────────────────────────────────────────────────────────────────

    def _hand(self, pop: Pop, handed: Handed, turn: Turn) -> None:
        """Answer with leases when they are confirmed."""
        waited = int((turn.now - pop.arrived) * 1000)
        leased, name = self._context.counts.leased, pop.group.name
        leased[name] = leased.get(name, 0) + handed.records
        turn.size += handed.size
        for part in handed.parts:
            self._context.counts.settled.times.begun(part.share.id, part.run.n, turn.now_ms)

        def answer(error: TwinlogError | None) -> None:
            pop.answer(error if error is not None else handed, waited)

        if pop.fast:
            turn.appended.append(answer)
        else:
            turn.answers.append(answer)

    def _answer(
        self, pop: Pop, done: Done, outcome: Handed | TwinlogError | None, waited: int = 0
    ) -> None:
        if isinstance(outcome, TwinlogError):
            done(outcome)
            return
        pop.session.heard_at = max(pop.session.heard_at, pop.arrived + waited / 1000)
        if outcome is None:
            outcome = Handed()
        if not pop.places and any(read.cold for read in outcome.read):
            self._fetch(self._asked(pop, outcome, waited), pop.asker, done)
            return
        if pop.places:
            for part in outcome.parts:
                part.records = part.size = 0
            done(self._fields(outcome.parts, waited))
            return
        slices = [piece for read in outcome.read for piece in read.slices]
        done(self._fields(outcome.parts, waited), slices)

    def _fields(self, parts: Sequence[Part], waited: int) -> dict[str, object]:
        return {
            "rows": [part.row() for part in parts],
            "now_ms": self._context.clock.ms,
            "waited_ms": waited,
            "epoch": self._epoch(),
        }

    def _asked(self, pop: Pop, handed: Handed, waited: int) -> Asked[list[ReadResult | Exception]]:
        reads = handed.read
        cold = [read for read in reads if read.cold]

        def work(stop: Callable[[], bool]) -> list[ReadResult | Exception]:
            return [read.outcome() if read.cold else read for read in reads]

        def finish(found: list[ReadResult | Exception] | Exception) -> Answer:
            if isinstance(found, Exception):
                raise found
            slices: list[memoryview] = []
            for part, read, outcome in zip(handed.parts, reads, found, strict=True):
                if read.cold:
                    read = self._context.records.fetched(read, outcome)
                    self._recount(pop, part, read)
                slices.extend(read.slices)
            return self._fields(handed.parts, waited), slices

        lowest = min(read.lowest for read in cold)
        look = OffLoopLookup(work, handed.size, lowest, cold[0].generation)
        return Asked(look, finish)

    def _recount(self, pop: Pop, part: Part, read: ReadResult) -> None:
        """Settle what a filter has left out of records that were cold."""
        part.records, part.size = read.count, sum(len(piece) for piece in read.slices)
        if part.share.topic not in pop.group.filters or read.unsifted:
            return
        at, gaps, run = part.run.first, list[GivenUpRow](), part.run
        for first, records, _ in stretches(read.slices, part.share.topic):
            if first > at:
                gaps.append(GivenUpRow(part.share.id, run.n, at, first - 1, LEFT_OUT))
            at = first + records
        if at <= run.last:
            gaps.append(GivenUpRow(part.share.id, run.n, at, run.last, LEFT_OUT))
        if gaps:
            self._later(partial(_write, gaps))


def _write(rows: Sequence[GivenUpRow], turn: Turn) -> None:
    for row in rows:
        turn.scratch.write(row)
