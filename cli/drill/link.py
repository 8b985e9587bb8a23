"""One direction of a connection under a rule: which bytes have arrived, and when the next ones do.

TCP never loses a byte, it is late: a cut holds bytes back until it is healed, a lost piece arrives
`RESEND_SECONDS` later, and nothing overtakes what was sent before it.  At most `HELD_MAX` bytes are
held; a link that is full is not read, so the sender feels it as it would feel a slow peer.

Times are seconds.  Pure: time and chance come in.

Not here: sockets (``network``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

RESEND_SECONDS = 0.2
"""What a lost piece costs: the shortest time after which Linux sends again."""
HELD_MAX = 1 << 20
"""Bytes that one direction of one connection holds."""
PIECE = 64 * 1024
"""Bytes of one piece, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What happens to the bytes of one direction; the plain rule lets them pass.

    Attributes:
        cut: Nothing arrives.
        closed: Connections are closed, new ones too.
        delay: Seconds each piece takes.
        loss: Share of the pieces that arrive late.
        rate: Bytes a second; 0: any number.
    """

    cut: bool = False
    closed: bool = False
    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0


PASS = Rule()


class Link:
    """Bytes under way in one direction.

    >>> link = Link()
    >>> link.put(b"abc", now=0.0, rule=Rule(delay=0.5), chance=1.0)
    >>> link.take(0.4, PASS), link.take(0.5, PASS)
    (b'', b'abc')
    """

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self.held = 0
        self.ended = False
        """The sender has closed; it counts once everything before it has arrived."""

    def put(self, data: bytes, *, now: float, rule: Rule, chance: float) -> None:
        """Take what the sender sent; ``chance`` is a random share."""
        before = self._pieces[-1][0] if self._pieces else 0.0
        due = now + rule.delay
        if chance < rule.loss:
            due += RESEND_SECONDS
        if rule.rate:
            due = max(due, before) + len(data) / rule.rate
        self._pieces.append((max(due, before), data))
        self.held += len(data)

    def take(self, now: float, rule: Rule) -> bytes:
        """The next bytes that have arrived by now; empty: nothing has."""
        if rule.cut or not self._pieces or self._pieces[0][0] > now:
            return b""
        data = self._pieces.popleft()[1]
        self.held -= len(data)
        return data

    def give_back(self, data: bytes) -> None:
        """Put bytes back that the receiver had no room for."""
        self._pieces.appendleft((0.0, data))
        self.held += len(data)

    def due(self, rule: Rule) -> float | None:
        """When the next bytes arrive; None: not by themselves."""
        return None if rule.cut or not self._pieces else self._pieces[0][0]

    @property
    def full(self) -> bool:
        """Whether no more may be read from the sender."""
        return self.held >= HELD_MAX

    def finished(self, rule: Rule) -> bool:
        """Whether the receiver may learn that the sender has closed."""
        return self.ended and not self._pieces and not rule.cut
