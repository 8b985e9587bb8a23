"""The call-backs of records under way: they learn what became of a message.

A call-back is called once, with the final outcome: a `Receipt`, or the error that says why there is
none. Retries are over by then: a section is sent again until its deadline, which is the producer's
``timeout`` (``twinlog.producer.core``). It is called by the thread or task that uses the producer
then, never while the producer is locked: it may send.

Pure. Not here: when a section has its answer (``twinlog.producer.core``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twinlog.errors import OutcomeUnknown, TwinlogError, Unavailable
from twinlog.format.messages import Receipt
from twinlog.producer.section import Section

OnResult = Callable[[Receipt | TwinlogError], object]
"""What `Producer.send` calls with the outcome of a message."""

Complain = Callable[[Exception], None]
"""What takes the exceptions of call-backs."""


class CallBacks:
    """See the module. As many wait as there are such records under way: the window bounds them.

    ``complain`` is given what a call-back raises: the sender of another message could do nothing
    with it.
    """

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self._waiting: dict[Section, list[tuple[int, OnResult]]] = {}
        self._outcomes: deque[tuple[OnResult, Section | TwinlogError, int]] = deque()
        self._dropped: list[tuple[OnResult, TwinlogError, int]] = []
        self._telling = False

    def watch(self, section: Section, on_result: OnResult) -> None:
        """Have the outcome of the record told that a section took last."""
        self._waiting.setdefault(section, []).append((section.count - 1, on_result))

    def settled(self, section: Section) -> None:
        """Take note that a section has its final answer."""
        for record, on_result in self._waiting.pop(section, ()):
            self._outcomes.append((on_result, section, record))

    def dropped(self, on_result: OnResult, error: TwinlogError) -> None:
        """Have it told that a record was not taken; by the next `tell` where a call-back sent it.

        One that sends again whatever was dropped would else go round for ever.
        """
        (self._dropped if self._telling else self._outcomes).append((on_result, error, 0))

    def tell(self) -> None:
        """Call those whose outcome is known, in the order of the answers."""
        if self._telling:  # a call-back that sends, or another thread: that caller goes on
            return
        self._telling = True
        try:
            while True:
                try:
                    # Threads that began at the same moment may both be here: no look before it.
                    on_result, outcome, record = self._outcomes.popleft()
                except IndexError:
                    return
                if isinstance(outcome, TwinlogError):
                    self._call(on_result, outcome)
                else:
                    self._call(on_result, outcome.error or outcome.receipt(record))
        finally:
            self._outcomes.extend(self._dropped)
            self._dropped.clear()
            self._telling = False

    def end(self) -> None:
        """Tell everybody else that the producer was closed before there was an answer."""
        self.tell()
        waiting, self._waiting = self._waiting, {}
        text = "the producer was closed before the message had its answer"
        for section, records in waiting.items():
            sent = section.attempts > 0
            error = OutcomeUnknown(text, topic=section.topic) if sent else Unavailable(text)
            for _, on_result in records:
                self._call(on_result, error)

    def _call(self, on_result: OnResult, outcome: Receipt | TwinlogError) -> None:
        try:
            on_result(outcome)
        except Exception as error:
            self._complain(error)


def watching(
    kept: CallBacks | None,
    outcome: Section | TwinlogError,
    on_result: OnResult,
    complain: Complain,
) -> CallBacks:
    """Return the call-backs with one more; the first of a producer makes them.

    ``outcome``: the section that took the record last, or the error of one that was not taken.
    """
    found = kept or CallBacks(complain)
    if isinstance(outcome, TwinlogError):
        found.dropped(on_result, outcome)
    else:
        found.watch(outcome, on_result)
    return found
