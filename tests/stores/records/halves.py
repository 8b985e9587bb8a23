"""Messages of transactions, as a client makes them, and a master that ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from node.leases.limits import GroupLimits
from node.transactions.checks import CheckSettings
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


class Producer:
    """A connection that waits to be asked."""

    gone = False
    congested = False


class World(deliveries.World):
    """A master whose service of transactions ends them, and asks about them."""

    settings = CheckSettings()

    def begin(self) -> None:
        """See `deliveries.World`."""
        self.again: list[Any] = []
        self.context.limits = GroupLimits(long_poll_seconds_max=1e6)
        self.transactions = Transactions(self.context, self.fetch, self.again.append, self.settings)
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

    def end(self, *numbers: int, outcome: int = COMMIT, group: str = "shop", why: str = "") -> Any:
        """Ask for the end of a transaction; return the answer, or raise the refusal."""
        said: list[Any] = []
        fields = {"group": group, "halves": list(numbers), "outcome": outcome, "why": why}
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
        return [row[0] for row in self.listed()]

    def listed(self, first: int = 0, limit: int = 1_000) -> list[list[Any]]:
        """The rows that a WAITING shows."""
        fields = {"what": "halves", "first": first, "limit": limit}
        return cast("list[list[Any]]", self.transactions.waiting(fields)["rows"])

    def ask(
        self, *, group: str = "shop", most: int = 100, wait: float = 3_600.0, asker: Any = None
    ) -> list[Any]:
        """Let a producer wait to be asked; return where its answer will be, and its records."""
        said: list[Any] = []
        fields = {"group": group, "max": most, "wait_ms": int(wait * 1000)}

        def done(outcome: Any, payload: Any = ()) -> None:
            said.append(outcome)
            said.extend(b"".join(payload) for _ in range(bool(payload)))

        who = asker or Producer()
        self._carry_out(lambda turn: self.transactions.asking.checks(fields, who, done, turn))
        self.work()
        return said

    def _carry_out(self, decide: Any) -> None:
        turn = cast("Any", SimpleNamespace(answers=[], together=[], now=self.now, now_ms=0))
        decide(turn)
        for append in turn.together:
            append()
        for answer in turn.answers:
            answer(None)
