"""A producer's core with a clock in the test's hand, and answers as nodes write them."""

from __future__ import annotations

from typing import Unpack

from twinlog.producer.core import ProducerCore, Request
from twinlog.producer.new_message import MessageFields, NewMessage
from twinlog.producer.section import Section
from twinlog.producer.settings import ProducerSettings, Target
from twinlog.units import MiB
from twinlog.wire import frames
from twinlog.wire.frames import Frame, Type


class Bench:
    """A producer of two queues whose master is known, and a clock that stands still."""

    def __init__(
        self, *, epoch: int | None = None, batch_topic: bool = False, **settings: float
    ) -> None:
        self.now = 100.0
        self.core = ProducerCore(
            Target("t", 2, 4, 77, 4 * MiB, 64 * MiB, epoch=epoch, batch=batch_topic),
            ProducerSettings(**settings),  # type: ignore[arg-type]
            random=lambda: 1.0,
        )
        self.core.unrouted = False

    def add(self, body: bytes, **message: Unpack[MessageFields]) -> Section:
        """Add a record."""
        return self.core.add(body, NewMessage(**message), self.now, int(self.now * 1000))

    def close_all(self) -> None:
        """Close what is open."""
        self.core.close_all(self.now)

    def requests(self) -> list[Request]:
        """Everything that may be sent now."""
        found: list[Request] = []
        while request := self.core.next_request(self.now):
            found.append(request)
        return found

    def request(self) -> Request:
        """The next request; there must be one."""
        found = self.core.next_request(self.now)
        assert found is not None
        return found

    def again(self) -> Request:
        """The next request after the pause."""
        self.now = max(self.now, self.core.retry_at)
        self.core.unrouted = False
        return self.request()

    def answer(self, request: Request, *rows: list[object]) -> None:
        """Answer every section of a request."""
        fields: dict[str, object] = {"results": list(rows), "confirmed_by": ["n1"], "epoch": 3}
        frame = Frame(Type.APPEND, frames.ANSWER, fields=fields)
        self.core.on_answer(request.number, frame, self.now)

    def refuse(self, request: Request, code: str, *, retryable: bool = False) -> None:
        """Refuse a whole request."""
        fields: dict[str, object] = {"code": code, "text": code, "hint": None}
        fields["retryable"] = retryable
        frame = Frame(Type.APPEND, frames.ANSWER | frames.ERROR, fields=fields)
        self.core.on_answer(request.number, frame, self.now)


def stored(at: int) -> list[object]:
    """The row of a section that is stored as the first of its queue offset ``at``."""
    return [0, at, at * 100, 0, "", "", -1]


def refused(code: str) -> list[object]:
    """The row of a section that is refused."""
    return [2, -1, -1, 0, code, code, -1]


UNKNOWN: list[object] = [3, -1, -1, 0, "", "", -1]
"""The row of a section of which the node does not know whether it is stored."""
