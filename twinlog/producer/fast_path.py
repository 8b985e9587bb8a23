"""The single send: one record in a section of its own, sent at once and waited for.

Most often it is the only thing that its producer has to do. Then the section is made, closed and
under way in one step, and the plain answer, "stored", ends it in another; a single send takes half
the time on the client that way (``benchmarks/clients/single_sends.py``). Whatever else happens (a
section before it has no answer yet, the master must be looked for, the answer is any other) is left
to the lanes of `ProducerCore`, to which the section belongs from the beginning as any other.

Pure. Not here: sections of several records, resending, deadlines (``twinlog.producer.core``).
"""

from __future__ import annotations

from typing import Final, cast

from twinlog.producer.core import ProducerCore, Request
from twinlog.producer.new_message import PLAIN, NewMessage, check_body
from twinlog.producer.section import Section
from twinlog.wire.frames import ANSWER, Frame

_INT_MAX: Final = (1 << 63) - 1
_STORED: Final = 0
_SMALL: Final = 64 * 1024
"""Bodies below fit into any section; larger ones are checked against the limits."""


class SingleSender:
    """See the module.

    Args:
        core: Decides; it may carry other sections as well.
    """

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    def send(
        self,
        body: bytes,
        message: NewMessage,
        now: float,
        now_ms: int,
        flags: int = 0,
        *,
        timeout: float,
    ) -> tuple[Section, Request | None]:
        """Put a record into a section of its own and close it.

        Where it can be sent at once, its request is returned with it and counts as sent: send it,
        or call `ProducerCore.on_lost`. None: `ProducerCore.next_request` returns it in time.

        Args:
            body, message, now, now_ms, flags: See `ProducerCore.add`.
            timeout: Seconds that its answer is waited for.

        Raises:
            RecordRefused: As `ProducerCore.add`.
        """
        core = self._core
        if message is PLAIN:
            text, lane = b"", core.lanes.current
        elif message.waits:  # `add` places it: its queue takes turns
            section = core.add(body, message, now, now_ms, flags)
            core.close(section, now)
            core.limit(section, now + timeout)
            return section, None
        else:
            text, lane = message.text(), core.lanes.lane_for(message)
        if not core.may_launch(lane, now):
            section = core.add(body, message, now, now_ms, flags)
            core.close(section, now)
            core.limit(section, now + timeout)
            return section, None
        core.check_open()
        if type(body) is not bytes:
            check_body(body)
        if len(body) > _SMALL:
            core.make_room(lane, len(body), now)
        section = core.begin(lane, now)
        born = now_ms if message.born_ms is None else message.born_ms
        section.whole(lane.encoder, body, text, flags, born)
        return section, core.launch(lane, section, now + timeout, now)

    def on_answer(self, number: int, frame: Frame, now: float) -> None:
        """Take the answer to request ``number``; see `ProducerCore.on_answer`."""
        if not self._is_stored(number, frame, now):
            self._core.on_answer(number, frame, now)

    def _is_stored(self, number: int, frame: Frame, now: float) -> bool:
        """Take the plain answer to a section that was sent alone; False: any other answer."""
        fields = frame.fields
        row = _only_row(fields.get("results"))
        # Anything unusual goes to `ProducerCore.on_answer`: only one place interprets such answers.
        if row is None or frame.flags != ANSWER or "buffered" in fields:
            return False
        by, epoch = fields.get("confirmed_by"), fields.get("epoch")
        if type(by) is not list or type(epoch) is not int or not 0 <= epoch <= _INT_MAX:
            return False
        names = cast("list[object]", by)
        holders = tuple([name for name in names if type(name) is str])
        section = self._core.lone(number)
        if section is None or section.count != 1 or len(holders) != len(names):
            return False
        section.confirmed_by, section.master_epoch = holders, epoch
        section.queue_offset, section.log_offset = row
        self._core.lone_stored(number, now)
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
