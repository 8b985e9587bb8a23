"""The single send of a producer of which nothing else is open or under way: no lane, no queueing.

A record that is sent alone and waited for is most often the only thing its producer has to do. Then
its section is made, closed and under way in one step (`SingleSender.alone`), and the plain answer,
"stored", ends it in another. Whatever is rare (the connection is to be looked for, a section before
it had no success, the answer is another one or none comes) is a matter of the lanes, to which such
a section belongs from the beginning as any other that was sent.

Pure, as `ProducerCore`. Not here: the section of several records, resending, deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from twinlog.outgoing import PROPERTIES_MAX, Section, State, property_text
from twinlog.producer import ProducerCore, Request, too_many_properties
from twinlog.wire import ANSWER, Frame

_INT_MAX: Final = (1 << 63) - 1
_STORED: Final = 0


class SingleSender(ProducerCore):
    """See the module."""

    _number_alone = 0
    """The request of the last section that went alone."""

    def alone(
        self,
        body: bytes,
        key: str | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        *,
        flags: int = 0,
        light: Sequence[str] = (),
        timeout: float,
    ) -> tuple[Section, Request] | None:
        """Put a record into a section of its own, under way at once; None: `add` it.

        What `add`, `close`, `limit` and `next_request` would do one after the other. If the request
        cannot be sent, call `on_lost`.

        Args:
            body, key, tag, order_key, properties, queue, flags, light: See `add`.
            timeout: Seconds that its answer is waited for.

        Raises:
            RecordRefused: As `add`.
        """
        if self._bytes or self.unrouted or self._ended is not None or self.target.batch:
            return None
        plain = queue is None and order_key is None
        lane = self._current if plain else self._chosen(order_key, queue)
        if lane.open is not None or lane.held or lane.gap is not None:
            return None
        now = self._now()
        if now < self.retry_at:
            return None
        text = b""
        if key is not None or tag is not None or not plain or properties or light:
            text = property_text(key, tag, order_key, properties, light)
            if len(text) > PROPERTIES_MAX:
                raise too_many_properties(len(text))
        if len(body) > self._large:
            self._make_room(lane, len(body))
        now_ms = self._wall_ms()
        section = self._begin(lane, now_ms)
        section.whole(lane.encoder, body, text, flags, now_ms)
        lane.sequence += 1
        lane.sent.append(section)
        if lane is self._current:
            self._take_turns(lane)
        return section, self._under_way(section, now + timeout, timeout)

    def _under_way(self, section: Section, deadline: float, timeout: float) -> Request:
        """Count a section as sent, the only one; return its request."""
        section.deadline = self._earliest = deadline
        section.attempts = 1
        self._bytes = section.size
        self._number += 1
        self._number_alone = self._number
        self._requests[self._number] = [section]
        statistics = self.statistics
        statistics.records += 1
        statistics.bytes += section.size
        statistics.sections += 1
        statistics.requests += 1
        fields: dict[str, object] = {
            "ack": self.settings.acknowledge,
            "timeout_ms": max(1, int(timeout * 1000)),
            "sections": [section.row()],
        }
        return Request(self._number, fields, [memoryview(section.data)], deadline)

    def on_answer(self, number: int, frame: Frame, now: float) -> None:
        """Take the answer to request ``number``; see `ProducerCore.on_answer`."""
        if number != self._number_alone or not self._is_stored(number, frame, now):
            super().on_answer(number, frame, now)

    def _is_stored(self, number: int, frame: Frame, now: float) -> bool:
        """Take the plain answer to a section that went alone; False for any other."""
        fields, sections = frame.fields, self._requests.get(number)
        row = _only_row(fields.get("results"))
        if sections is None or row is None or frame.flags != ANSWER or "buffered" in fields:
            return False
        section, by, epoch = sections[0], fields.get("confirmed_by"), fields.get("epoch")
        if type(by) is not list or type(epoch) is not int or not 0 <= epoch <= _INT_MAX:
            return False
        lane, names = self._lanes[section.queue], cast("list[object]", by)
        holders = tuple([name for name in names if type(name) is str])
        alone = lane.sent == sections and not (lane.held or lane.again or lane.waiting)
        if not alone or lane.ahead or len(holders) != len(names):
            return False
        del self._requests[number]
        section.confirmed_by, section.master_epoch = holders, epoch
        section.queue_offset, section.log_offset = row
        self.statistics.acknowledged += 1
        self._attempt = 0
        self.refusal = None
        lane.sent.clear()
        self._settle(section, State.STORED, now)
        return True


def _only_row(results: object) -> tuple[int, int] | None:
    """Return queue offset and log offset of a single result that says "stored", plainly."""
    if type(results) is not list or len(cast("list[object]", results)) != 1:
        return None
    only = cast("list[object]", results)[0]
    if type(only) is not list or len(cast("list[object]", only)) != 7:
        return None
    outcome, first, at, end, code, text, record = cast("list[object]", only)
    if type(outcome) is not int or type(first) is not int or type(at) is not int:
        return None
    if type(end) is not int or type(record) is not int or code != "" or text != "":
        return None
    if outcome != _STORED or record != -1 or not 0 <= first <= _INT_MAX:
        return None
    return (first, at) if 0 <= at <= end <= _INT_MAX else None
