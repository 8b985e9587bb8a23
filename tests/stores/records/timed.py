"""Records that wait for a time, as a client makes them, and a master that delivers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from node.delivery.service import Deliveries, DeliveryCounts
from node.delivery.sources import Timers
from storage import Section
from storage.state.sequences import sequence_text
from tests.fakes import deliveries
from tests.stores.workbench import TOPIC
from twinlog.errors import TwinlogError
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import due_text, real_text


def timed(
    at_ms: int | None = None,
    count: int = 1,
    *,
    delay_ms: int | None = None,
    now_ms: int = 0,
    topic: str = TOPIC,
    queue: int = 0,
    mark: int = 0,
    size: int = 20,
    producer: int = 0,
    sequence: int = 0,
) -> Section:
    """A section of ``count`` records for one queue of a topic; bodies are ``mark/number/``."""
    made = Section(TIMER_TOPIC, 0, count, b"", producer, 0, sequence)
    encoder = RecordEncoder(TIMER_TOPIC, 0)
    for number in range(count):
        text = encode_properties({"KEYS": f"k{mark}", "UNIQ_KEY": f"{mark}.{number}"})
        text += due_text(now_ms, delay_ms=delay_ms, at_ms=at_ms) + real_text(topic, queue)
        if producer and not number:
            text += encode_properties({"TL_SEQ": sequence_text(made).decode()})
        body = f"{mark}/{number}/".encode().ljust(size, b".")
        encoder.add(body, properties=text, born_timestamp=1)
    return Section(TIMER_TOPIC, 0, count, encoder.take(), producer, 0, sequence)


class World(deliveries.World):
    """A master whose service of timers delivers."""

    def begin(self) -> None:
        """See `deliveries.World`."""
        counts = DeliveryCounts(self.late.append)
        self.source = Timers(self.context, counts)
        self.timers = Deliveries(self.context, self.fetch, self.source, counts)

    @property
    def service(self) -> Deliveries:
        """See `deliveries.World`."""
        return self.timers

    def reign(self) -> tuple[int, None]:
        """This node is the master."""
        return self.writer.epoch, None

    def cancel(self, due_ms: int, log_offset: int) -> TwinlogError | None:
        """Ask for a cancel; its rows are confirmed at once."""
        turn = SimpleNamespace(scratch=SimpleNamespace(rows=[]), answers=[])
        said: list[Any] = []
        fields = {"log_offset": log_offset, "due_ms": due_ms}
        self.source.cancel(fields, said.append, cast("Any", turn))
        rows = turn.scratch.rows
        if rows:
            self.store.append_rows(self.writer, rows, wall_ms=self.wall_ms)
        for answer in turn.answers:
            answer(None)
        return said[0] if isinstance(said[0], TwinlogError) else None
