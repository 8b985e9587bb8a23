"""Work in threads: cold reads and lookups, searches by key, raw pieces of the log.

Their results are copies, unlike hot answers, so their memory is bounded
(`node.clients.memory_budget`): taken before a thread copies, corrected to the actual size, held
until the client has received its answer.

* A client that has disconnected costs nothing: no thread runs for it, a running search stops.
* A search takes no memory before it has found records to copy, and stops when its client no longer
waits. One connection has one search at a time, others of it wait.
* An exception while an answer is made concerns that client alone.

Limits: ``cold_reads_max``, ``cold_bytes_max``, ``cold_share_max``, ``cold_waiting_max``,
``finds_max``, ``find_seconds_max`` (`node.clients.limits`). Not here: what is read and answered
(`node.clients.reads`, `node.clients.searches`, `node.clients.raw_log`,
`node.clients.lookups`), and closing slow clients (`node.clients.connection`).

Cancellation: a cancelled task releases its memory; its client gets no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

from node.clients.counts import ClientCounts
from node.clients.limits import Limits
from node.clients.lookups import Asked
from node.clients.memory_budget import Budget
from node.clients.raw_log import RawLog, RawQuery
from node.clients.reads import Cold, ReadAsker, Reads
from node.clients.searches import Finds, copy, search
from storage.key_index.search import KeyQuery, Lookup
from twinlog.errors import Busy, TwinlogError

if TYPE_CHECKING:
    from replication.replica_service import ReplicaService


class Later(Protocol):
    """Answers a request when its outcome is known; dropped if the connection is closed."""

    def __call__(
        self, outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
    ) -> None:
        """Answer with fields and payload, or with an error."""
        ...


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Work(Generic[T]):
    """One piece of work.

    Attributes:
        asker: The connection that waits.
        size: Bytes that its answer may take.
        run: Reads what is needed, in a thread.
        answer: Answers with the result; returns its bytes, raises the error for the client.
        refuse: Answers with an error.
        until: Deadline of the client.
    """

    asker: ReadAsker
    size: int
    run: Callable[[], T]
    answer: Callable[[T], int]
    refuse: Callable[[TwinlogError], None]
    until: float = math.inf


class ColdWork:
    """See the module."""

    def __init__(
        self,
        world: ReplicaService,
        limits: Limits,
        counts: ClientCounts,
        *,
        reads: Reads,
        finds: Finds,
        raw: RawLog,
    ) -> None:
        self._world = world
        self._limits = limits
        self._counts = counts
        self._reads = reads
        self._finds = finds
        self._raw = raw
        # A search may take long and has threads of its own, one each, so none waits for a thread.
        self._threads = trio.CapacityLimiter(limits.cold_reads_max + limits.finds_max)
        self._searches = Budget(limits.finds_max, share=1, line_max=limits.cold_waiting_max)
        self._budget = Budget(
            limits.cold_bytes_max, share=limits.cold_share_max, line_max=limits.cold_waiting_max
        )
        self._nursery: trio.Nursery | None = None

    def run_in(self, nursery: trio.Nursery) -> None:
        """Set the nursery for the tasks."""
        self._nursery = nursery

    @property
    def held(self) -> int:
        """Bytes of answers being made or not yet received."""
        return self._budget.held

    @property
    def waiting(self) -> int:
        """How many wait for memory."""
        return self._budget.waiting

    def forget(self, asker: ReadAsker) -> None:
        """Drop the waiting work of a closed connection."""
        self._searches.leave(asker)
        self._budget.leave(asker)

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def read(self, cold: Cold) -> None:
        """Fetch cold data; touching it on the loop would stall every connection."""
        request = cold.request
        asker = request.asker
        self._begin(
            _Work(
                asker,
                sum(len(piece) for piece in cold.result.slices),
                run=cold.result.outcome,
                answer=lambda fetched: self._reads.finish(cold, fetched),
                refuse=lambda error: asker.read_failed(request.request, error),
            )
        )

    def find(
        self,
        query: KeyQuery,
        seconds: float,
        asker: ReadAsker,
        done: Later,
        *,
        age_max: float | None = None,
    ) -> None:
        """Search for a key for at most ``seconds``; ``done`` takes the answer.

        ``age_max`` is how old the data may be, seconds, as the client says; None: as configured.

        Raises:
            TwinlogError: It is refused at once; ``done`` is not called.
        """
        clock = self._world.outbox.readiness.clock
        until = clock() + seconds
        self._check_place(self._searches, asker)
        lookup = self._finds.begin(query, age_max)
        lookup.stop = lambda: asker.gone or clock() >= until
        assert self._nursery is not None, "the server does not run"
        self._nursery.start_soon(self._find, lookup, until, asker, done)

    def log(self, query: RawQuery, asker: ReadAsker, done: Later) -> None:
        """Copy a piece of the log; ``done`` takes the answer.

        Raises:
            TwinlogError: It is refused at once; ``done`` is not called.
        """
        piece = self._raw.begin(query)
        if piece is None:
            done(*self._raw.finish(query, None, b""))
            return

        def answer(data: bytes) -> int:
            done(*self._raw.finish(query, piece, data))
            return len(data)

        self._begin(_Work(asker, piece.end - piece.start, piece.copy, answer, done))

    def look(self, asked: Asked[T], asker: ReadAsker, done: Later) -> None:
        """Look something up for an answer; ``done`` takes it."""

        def answer(found: T | Exception) -> int:
            fields, slices = asked.finish(found)
            done(fields, slices)
            return sum(len(piece) for piece in slices)

        run = partial(asked.look.run, lambda: asker.gone)
        self._begin(_Work(asker, asked.look.size, run, answer, done))

    # ── execution ─────────────────────────────────────────────────────────────────────────────

    def _begin(self, work: _Work[T]) -> None:
        try:
            self._check_place(self._budget, work.asker)
        except Busy as refused:
            work.refuse(refused)
            return
        assert self._nursery is not None, "the server does not run"
        self._nursery.start_soon(self._carry_out, work)

    def _check_place(self, budget: Budget, asker: ReadAsker) -> None:
        if not budget.has_place(asker):
            self._counts.limit_reached("cold_waiting_max")
            text = f"{budget.waiting} wait for memory or a thread already (cold_waiting_max)"
            raise Busy(text, limit="cold_waiting_max")

    async def _granted(self, budget: Budget, work: _Work[T]) -> bool:
        """Wait for the work's turn; False when its client is gone or the deadline has passed."""
        granted = False
        with trio.move_on_at(work.until) as patience:
            granted = await budget.take(work.asker, work.size)
        if patience.cancelled_caught:
            work.refuse(Busy("no memory or thread was free in time", limit="cold_bytes_max"))
            self._world.turn()
        return granted

    async def _find(self, lookup: Lookup, until: float, asker: ReadAsker, done: Later) -> None:
        """Search without holding memory; copy the records found like a cold read."""

        def answer(error: TwinlogError | None) -> int:
            fields, slices = self._finds.finish(lookup, error)
            done(fields, slices)
            return sum(len(piece) for piece in slices)

        one = _Work(asker, 1, partial(search, lookup), answer, done, until)
        if not await self._granted(self._searches, one):
            return
        found = 0
        try:
            error = await self._threaded(one)
            found = sum(len(piece) for piece in lookup.found.slices)
            if error is not None or not found:
                found = 0
                self._answer(one, error)
        except Exception as broken:
            asker.broke(broken)
        finally:
            self._searches.give(asker, 1)
        if not found:
            self._world.turn()
            return
        copying = _Work(asker, found, partial(copy, lookup), answer, done, until)
        await self._carry_out(copying)

    async def _threaded(self, work: _Work[T]) -> T:
        with self._world.outbox.readiness.awaiting():
            return await self._world.threads.run("read", work.run, limiter=self._threads)

    async def _carry_out(self, work: _Work[T]) -> None:
        if not await self._granted(self._budget, work):
            return
        asker, held = work.asker, work.size
        try:
            if not asker.gone:
                held = await self._answered(work)
                self._world.turn()
                await asker.taken()
        finally:
            self._budget.give(asker, held)

    async def _answered(self, work: _Work[T]) -> int:
        """Run the work and answer; return the bytes held for it from now on."""
        size = 0
        try:
            size = self._answer(work, await self._threaded(work))
        except Exception as error:
            work.asker.broke(error)
        if size < work.size:
            self._budget.give(work.asker, work.size - size)
        elif size > work.size:
            self._budget.add(work.asker, size - work.size)
        return size

    def _answer(self, work: _Work[T], found: T) -> int:
        """Answer with the result of a thread, or with the error that makes it useless."""
        try:
            return work.answer(found)
        except TwinlogError as error:
            work.refuse(error)
            return 0
