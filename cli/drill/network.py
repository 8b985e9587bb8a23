"""The network of a drill: a TCP proxy before every port of its cluster, under rules.

Nodes tell others the proxies' ports (``clients_advertised``, ``slaves_advertised``), and their
cluster file names the proxy of the coordinator; so every byte between two processes, and between
clients and nodes, passes here.  Who dials is read from the first frame, which names the node;
a client names none and is ``clients``.  Commands and the drill's own looks go to the real ports.

    network.set({("n1", "n2"): Rule(cut=True)})      bytes of n1 no longer reach n2

One thread with a selector; rules may be set from any thread.  Loopback only.  At most
`CONNECTIONS_MAX` connections; one more is closed at once.

Not here: what a rule does to bytes (``link``).
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cli.drill.link import PASS, PIECE, Link, Rule
from twinlog.errors import ProtocolError
from twinlog.wire.frames import FrameReader

CLIENTS = "clients"
CONNECTIONS_MAX = 512
TURN_SECONDS = 0.05
"""Longest pause of the loop."""
GREETING_MAX = 256 * 1024
"""Bytes in which the first frame of a connection must lie; else who dials stays unknown."""
CONNECT_SECONDS = 1.0

Rules = Mapping[tuple[str, str], Rule]
"""(sender, receiver) by name."""


@dataclass
class _Side:
    """One socket of a connection, and the bytes on their way to it."""

    sock: socket.socket
    arriving: Link = field(default_factory=Link)
    events: int = 0


@dataclass
class _Pair:
    """A connection: who dialled, which process it was for, and both its sockets."""

    target: str
    dialled: _Side
    answered: _Side
    peer: str = ""
    """Empty until the first frame was seen."""
    greeting: bytes = b""

    def towards(self, side: _Side) -> tuple[str, str]:
        """Sender and receiver of the bytes that arrive at ``side``."""
        return (self.peer, self.target) if side is self.answered else (self.target, self.peer)

    def other(self, side: _Side) -> _Side:
        """The socket at the other end."""
        return self.dialled if side is self.answered else self.answered


class Network:
    """Proxies of one cluster.  Not safe for threads but `set` and `close`."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[socket.socket, tuple[str, int, bool]] = {}
        self._pairs: dict[socket.socket, _Pair] = {}
        self._rules: Rules = {}
        self._waker, self._wake = os.pipe()
        for end in (self._waker, self._wake):
            os.set_blocking(end, False)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def before(self, target: str, port: int, *, named: bool) -> int:
        """Stand before a port of this machine; returns our own.

        Args:
            target: Name of the process that listens there.
            port: Where.
            named: Those who dial say who they are; otherwise all of them are ``clients``.
        """
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self._listeners[listener] = target, port, named
        self._selector.register(listener, selectors.EVENT_READ)
        return int(listener.getsockname()[1])

    def start(self) -> None:
        """Begin to pass bytes on."""
        self._thread.start()

    def set(self, rules: Rules) -> None:
        """Replace all rules; a link without one lets everything pass."""
        self._rules = dict(rules)
        self._woken()

    def close(self) -> None:
        """Close every connection and end the thread."""
        self._stop = True
        self._woken()
        if self._thread.ident is not None:
            self._thread.join(5.0)
        for sock in [*self._listeners, *self._pairs]:
            sock.close()
        self._selector.close()
        os.close(self._waker)
        os.close(self._wake)

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake, b"x")

    def _rule(self, link: tuple[str, str]) -> Rule:
        return self._rules.get(link, PASS)

    def _run(self) -> None:
        while not self._stop:
            for key, events in self._selector.select(self._pause()):
                if key.fileobj == self._waker:
                    with suppress(BlockingIOError):
                        os.read(self._waker, 4096)
                elif isinstance(key.fileobj, socket.socket):
                    self._ready(key.fileobj, events)
            for pair in {id(pair): pair for pair in self._pairs.values()}.values():
                self._move(pair)

    def _pause(self) -> float:
        now = time.monotonic()
        soonest = now + TURN_SECONDS
        for pair in self._pairs.values():
            for side in (pair.dialled, pair.answered):
                due = side.arriving.due(self._rule(pair.towards(side)))
                if due is not None and not side.events & selectors.EVENT_WRITE:
                    soonest = min(soonest, due)
        return max(0.0, soonest - now)

    def _ready(self, sock: socket.socket, events: int) -> None:
        if sock in self._listeners:
            self._accept(sock)
            return
        pair = self._pairs.get(sock)
        if pair is not None and events & selectors.EVENT_READ:
            self._receive(pair, sock)

    def _accept(self, listener: socket.socket) -> None:
        target, port, named = self._listeners[listener]
        with suppress(OSError):
            sock, _ = listener.accept()
            try:
                if len(self._pairs) >= 2 * CONNECTIONS_MAX:
                    raise OSError("too many connections")
                through = socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS)
            except OSError:
                sock.close()  # as a port does where no process listens
                return
            for one in (sock, through):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(target, _Side(sock), _Side(through), "" if named else CLIENTS)
            self._pairs[sock] = self._pairs[through] = pair
            for side in (pair.dialled, pair.answered):
                side.events = selectors.EVENT_READ
                self._selector.register(side.sock, side.events)

    def _receive(self, pair: _Pair, sock: socket.socket) -> None:
        from_dialler = sock is pair.dialled.sock
        reaching = pair.answered if from_dialler else pair.dialled
        try:
            data = sock.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            reaching.arriving.ended = True
            pair.peer = pair.peer or CLIENTS
            return
        if from_dialler and not pair.peer:
            data = self._greeted(pair, data)
        if data:
            rule = self._rule(pair.towards(reaching))
            reaching.arriving.put(
                data, now=time.monotonic(), rule=rule, chance=self._chance.random()
            )

    def _greeted(self, pair: _Pair, data: bytes) -> bytes:
        """Read who dials from the first frame; nothing passes before that."""
        pair.greeting += data
        reader = FrameReader()
        try:
            reader.feed(pair.greeting)
            frame = reader.next()
        except ProtocolError:
            frame = None
            pair.peer = CLIENTS
        if frame is not None:
            name = frame.fields.get("node") or frame.fields.get("client")
            pair.peer = name if isinstance(name, str) else CLIENTS
        if not pair.peer and len(pair.greeting) > GREETING_MAX:
            pair.peer = CLIENTS
        if not pair.peer:
            return b""
        whole, pair.greeting = pair.greeting, b""
        return whole

    def _move(self, pair: _Pair) -> None:
        """Pass on what has arrived; close where a rule or an end says so."""
        now = time.monotonic()
        sides = (pair.dialled, pair.answered)
        if pair.peer and any(self._rule(pair.towards(side)).closed for side in sides):
            self._drop(pair)
            return
        for side in sides:
            rule = self._rule(pair.towards(side))
            blocked = False
            while not blocked and (data := side.arriving.take(now, rule)):
                blocked = not self._sent(pair, side, data)
            if side.arriving.finished(rule):
                self._drop(pair)
                return
        for side in sides:
            self._watch(pair, side)

    def _sent(self, pair: _Pair, side: _Side, data: bytes) -> bool:
        """Send; False when the receiver has no more room."""
        try:
            count = side.sock.send(data)
        except BlockingIOError:
            count = 0
        except OSError:
            pair.other(side).arriving.ended = True
            return False
        if count < len(data):
            side.arriving.give_back(data[count:])
            return False
        return True

    def _watch(self, pair: _Pair, side: _Side) -> None:
        """Wait for the socket to be readable while there is room, and writable while it is full."""
        into = pair.other(side).arriving
        wanted = 0 if into.full or into.ended else selectors.EVENT_READ
        due = side.arriving.due(self._rule(pair.towards(side)))
        if due is not None and due <= time.monotonic():
            wanted |= selectors.EVENT_WRITE
        if wanted == side.events:
            return
        if side.events and wanted:
            self._selector.modify(side.sock, wanted)
        elif wanted:
            self._selector.register(side.sock, wanted)
        else:
            self._selector.unregister(side.sock)
        side.events = wanted

    def _drop(self, pair: _Pair) -> None:
        for side in (pair.dialled, pair.answered):
            if side.events:
                self._selector.unregister(side.sock)
            self._pairs.pop(side.sock, None)
            side.sock.close()
