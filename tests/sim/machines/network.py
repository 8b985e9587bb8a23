"""The network between nodes, coordinator and clients: delay, cuts, resets, silence.

Two services, as the real world has them:

* *streams* between nodes: bytes of one direction arrive in order or not at all; a stream that is
  cut loses what was under way; a side may never learn of it (half-open), as when a machine loses
  its power; between two streams any order is possible;
* *datagrams* (`Network.post`) for clients and the coordinator: one message, delayed or lost. The
  sender makes of silence what a timeout makes of it: an unknown outcome.

A *block* is one direction of one pair of places. Streams hold back what a block stops and deliver
it when the block goes, as TCP does; datagrams are lost. Names of places: node names, ``coord``,
``clients``.

Invariants: a frame is delivered at most once, only to the two processes (incarnations) that opened
the stream, and in the order in which it was sent.

Not here: what a paused or dead process does with a delivery (`tests.sim.machines.node`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests.sim.schedule import Schedule

_FIRST_ACCEPTED = 1_000_000_000  # accepted connections count from here, dialed ones are the core's
_DIAL_TIMEOUT = 1.0  # seconds until a dial into silence gives up


class Endpoint(Protocol):
    """A process that can hold one side of a stream."""

    name: str

    @property
    def incarnation(self) -> int:
        """Number of the process."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        ...

    def stream_opened(self, incarnation: int, conn: int) -> None:
        """A dial succeeded."""

    def stream_accepted(self, incarnation: int, conn: int) -> None:
        """Somebody dialed us."""

    def stream_frame(self, incarnation: int, conn: int, frame: object) -> None:
        """A frame arrived."""

    def stream_closed(self, incarnation: int, conn: int, why: str) -> None:
        """The stream is gone."""


@dataclass(slots=True)
class Weather:
    """How bad the network is in this run.

    Attributes:
        delay: Usual one-way delay, seconds.
        slow_share: Share of messages that take up to ``slow_delay``.
        slow_delay: Longest delay of a slow message, seconds.
        lost_share: Share of datagrams lost.
        cut_share: Share of frames that cut their stream instead of arriving.
        damage_share: Share of frames with a payload in which a bit flips unnoticed by TCP.
    """

    delay: float = 0.0005
    slow_share: float = 0.0
    slow_delay: float = 0.0
    lost_share: float = 0.0
    cut_share: float = 0.0
    damage_share: float = 0.0


class Side:
    """One side of a stream: who holds it and what is under way to it."""

    __slots__ = ("conn", "endpoint", "incarnation", "open", "pumping", "queue", "ready")

    def __init__(self, endpoint: Endpoint, conn: int) -> None:
        self.endpoint = endpoint
        self.incarnation = endpoint.incarnation
        self.conn = conn
        self.open = True
        self.queue: deque[tuple[float, object]] = deque()
        self.ready = 0.0
        self.pumping = False

    @property
    def there(self) -> bool:
        """True while the process that opened this side still runs."""
        return self.endpoint.alive and self.endpoint.incarnation == self.incarnation


@dataclass(frozen=True, slots=True)
class _Closing:
    why: str


class Network:
    """Carries everything between places."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._rng = schedule.rng
        self.weather = Weather()
        self.blocked: set[tuple[str, str]] = set()
        self._sides: dict[tuple[str, int, int], tuple[Side, Side]] = {}
        self._accepted = _FIRST_ACCEPTED
        self.frames = 0
        self.cuts = 0
        self.damages = 0

    def delay(self) -> float:
        """Draw one message's delay, seconds."""
        weather = self.weather
        chance = self._rng.random()
        if chance < weather.slow_share:
            return weather.slow_delay * self._rng.random()
        return weather.delay * (0.5 + chance)

    def damaged(self, payload: bytes) -> bytes:
        """Return what arrives of a payload: usually the same."""
        share = self.weather.damage_share
        if not share or not payload or self._rng.random() >= share:
            return payload
        self.damages += 1
        changed = bytearray(payload)
        changed[self._rng.randrange(len(changed))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    # -- datagrams

    def post(self, source: str, target: str, call: Callable[..., None], *args: object) -> bool:
        """Deliver ``call(*args)`` at ``target`` after a delay; False when it is lost."""
        weather = self.weather
        if (source, target) in self.blocked:
            return False
        if weather.lost_share and self._rng.random() < weather.lost_share:
            return False
        self._schedule.after(self.delay(), call, *args)
        return True

    # -- blocks

    def block(self, source: str, target: str) -> None:
        """Stop everything from ``source`` to ``target``."""
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """End a block; what streams held back goes on."""
        self.blocked.discard((source, target))
        for near, far in list(self._sides.values()):
            if near.endpoint.name == source and far.endpoint.name == target:
                self._pump(far, source)

    def unblock_all(self) -> None:
        """End all blocks."""
        for source, target in sorted(self.blocked):
            self.unblock(source, target)

    # -- streams

    def dial(self, source: Endpoint, conn: int, target: Endpoint | None) -> None:
        """Open a stream; the answer comes as `Endpoint.stream_opened` or ``stream_closed``."""
        incarnation = source.incarnation
        if target is None:
            self._schedule.after(self.delay(), source.stream_closed, incarnation, conn, "unknown")
            return
        self._schedule.after(self.delay(), self._arrive, source, incarnation, conn, target)

    def _arrive(self, source: Endpoint, incarnation: int, conn: int, target: Endpoint) -> None:
        ways = ((source.name, target.name), (target.name, source.name))
        if any(way in self.blocked for way in ways) or target.name == source.name:
            self._schedule.after(
                _DIAL_TIMEOUT, source.stream_closed, incarnation, conn, "no answer"
            )
            return
        if not target.alive:
            self._schedule.after(self.delay(), source.stream_closed, incarnation, conn, "refused")
            return
        if not source.alive or source.incarnation != incarnation:
            return
        self._accepted += 1
        near, far = Side(source, conn), Side(target, self._accepted)
        self._sides[source.name, incarnation, conn] = (near, far)
        self._sides[target.name, target.incarnation, far.conn] = (far, near)
        target.stream_accepted(target.incarnation, far.conn)
        if near.there:
            self._schedule.after(self.delay(), self._opened, near)

    def _opened(self, near: Side) -> None:
        if near.open and near.there:
            near.endpoint.stream_opened(near.incarnation, near.conn)

    def send(self, source: Endpoint, conn: int, frame: object) -> None:
        """Put a frame on its way; it is lost when the stream is gone."""
        pair = self._sides.get((source.name, source.incarnation, conn))
        if pair is None or not pair[0].open:
            return
        near, far = pair
        self.frames += 1
        if self.weather.cut_share and self._rng.random() < self.weather.cut_share:
            self.cut(near, far)
            return
        self._enqueue(far, near.endpoint.name, frame)

    def _enqueue(self, far: Side, source: str, item: object) -> None:
        ready = self._schedule.now + self.delay()
        far.ready = max(far.ready, ready)  # in order within the stream
        far.queue.append((far.ready, item))
        if not far.pumping:
            self._pump(far, source)

    def _pump(self, far: Side, source: str) -> None:
        if far.pumping or not far.queue:
            return
        if (source, far.endpoint.name) in self.blocked:
            return
        far.pumping = True
        self._schedule.at(far.queue[0][0], self._deliver, far, source)

    def _deliver(self, far: Side, source: str) -> None:
        far.pumping = False
        if not far.queue or (source, far.endpoint.name) in self.blocked:
            return
        _, item = far.queue.popleft()
        if far.open:
            if not far.there:
                self._answer_dead(far)
            elif isinstance(item, _Closing):
                self._forget(far)
                far.endpoint.stream_closed(far.incarnation, far.conn, item.why)
            else:
                far.endpoint.stream_frame(far.incarnation, far.conn, item)
        self._pump(far, source)

    def _answer_dead(self, far: Side) -> None:
        """A frame reached a machine where its process is gone: a reset goes back, if it can."""
        if not far.endpoint.alive:
            return  # the whole machine is off: silence
        pair = self._sides.get((far.endpoint.name, far.incarnation, far.conn))
        self._forget(far)
        if pair is not None:
            self._enqueue(pair[1], far.endpoint.name, _Closing("reset"))

    def close(self, source: Endpoint, conn: int, why: str) -> None:
        """Close our side; the other side hears of it after what is under way."""
        pair = self._sides.get((source.name, source.incarnation, conn))
        if pair is None or not pair[0].open:
            return
        near, far = pair
        self._forget(near)
        if far.open:
            self._enqueue(far, near.endpoint.name, _Closing(why))

    def cut(self, near: Side, far: Side) -> None:
        """Cut a stream: what is under way is lost, each side learns of it in its own time."""
        self.cuts += 1
        for side, other in ((near, far), (far, near)):
            side.queue.clear()
            if side.open:
                self._enqueue(side, other.endpoint.name, _Closing("cut"))

    def cut_some(self, share: float) -> None:
        """Cut a random part of all streams."""
        for (_, _, conn), (near, far) in list(self._sides.items()):
            if conn < _FIRST_ACCEPTED and near.open and self._rng.random() < share:
                self.cut(near, far)

    def cut_of(self, endpoint: Endpoint) -> None:
        """Cut the streams of one process."""
        for (name, _, _), (near, far) in list(self._sides.items()):
            if name == endpoint.name and near.open:
                self.cut(near, far)

    def process_gone(self, endpoint: Endpoint, *, silently: bool) -> None:
        """A process ended: its kernel closes its streams, unless the machine died with it."""
        for key, (near, far) in list(self._sides.items()):
            if key[0] == endpoint.name and near.open:
                if silently:
                    self._forget_key(key)
                else:
                    self._forget(near)
                    if far.open:
                        self._enqueue(far, endpoint.name, _Closing("reset"))

    def _forget(self, side: Side) -> None:
        side.open = False
        side.queue.clear()
        self._sides.pop((side.endpoint.name, side.incarnation, side.conn), None)

    def _forget_key(self, key: tuple[str, int, int]) -> None:
        near, _ = self._sides[key]
        near.queue.clear()
