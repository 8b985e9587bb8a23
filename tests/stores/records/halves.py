"""Messages of transactions, as a client makes them, and a master that ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from node.transactions.service import Transactions, parse_end
from storage import Section
from storage.state.sequences import sequence_text
from tests.fakes import deliveries
from tests.stores.workbench import TOPIC
from twinlog.errors import TwinlogError
from twinlog.format.group_rows import COMMIT
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.system_topics import HALF_TOPIC
from twinlog.format.waiting.halves import half_text


def halves(
    count: int = 1,
    *,
    group: str = "shop",
    name: str = "7f",
    topic: str = TOPIC,
    queue: int = 0,
    mark: int = 0,
    size: int = 20,
    producer: int = 0,
    text: bytes | None = None,
) -> Section:
    """A section of ``count`` messages of a transaction; bodies are ``mark/number/``."""
    made = Section(HALF_TOPIC, 0, count, b"", producer, 0, 0)
    encoder = RecordEncoder(HALF_TOPIC, 0)
    for number in range(count):
        said = encode_properties({"KEYS": f"k{mark}", "UNIQ_KEY": f"{mark}.{number}"})
        said += half_text(group, name, topic, queue) if text is None else text
        if producer and not number:
            said += encode_properties({"TL_SEQ": sequence_text(made).decode()})
        body = f"{mark}/{number}/".encode().ljust(size, b".")
        encoder.add(body, properties=said, born_timestamp=1)
    return Section(HALF_TOPIC, 0, count, encoder.take(), producer, 0, 0)


class World(deliveries.World):
    """A master whose service of transactions ends them."""

    def begin(self) -> None:
        """See `deliveries.World`."""
        self.again: list[Any] = []
        self.transactions = Transactions(self.context, self.fetch, self.again.append)
        self.context.refusal = lambda code, text: TwinlogError(text, code=code)

    @property
    def service(self) -> Any:
        """See `deliveries.World`."""
        return self.transactions

    def reign(self) -> tuple[int, None]:
        """This node is the master."""
        return self.writer.epoch, None

    def work(self) -> None:
        """Do all that is due, and what a thread had to fetch first."""
        super().work()
        while self.again:
            self._carry_out(self.again.pop(0)[0])
            super().work()

    def end(self, *numbers: int, outcome: int = COMMIT, group: str = "shop") -> Any:
        """Ask for the end of a transaction; return the answer, or raise the refusal."""
        said: list[Any] = []
        fields = {"group": group, "halves": list(numbers), "outcome": outcome}
        asked = parse_end(fields)
        self._carry_out(lambda turn: self.transactions.end(asked, said.append, turn))
        while self.again:
            self._carry_out(self.again.pop(0)[0])
        [found] = said
        if isinstance(found, TwinlogError):
            raise found
        return found["outcome"]

    def open(self) -> list[int]:
        """The messages that a WAITING shows."""
        said: list[Any] = []
        fields = {"what": "halves", "first": 0, "limit": 1000}
        self._carry_out(lambda turn: self.transactions.waiting(fields, said.append, turn))
        return [row[0] for row in said[0]["rows"]]

    def _carry_out(self, decide: Any) -> None:
        turn = cast("Any", SimpleNamespace(answers=[], together=[], now=self.now, now_ms=0))
        decide(turn)
        for append in turn.together:
            append()
        for answer in turn.answers:
            answer(None)
