"""Workers of a drill: what a ledger of handled messages says, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cli.drill.workers import Workers
from cli.failures import Failure
from twinlog.errors import Unavailable


@dataclass
class Bed:
    """A cluster of one group: what a pop brings, and what the master says is left."""

    pops: list[Any]
    lag: int = 0
    unsettled: int = 0
    acked: list[bytes] = field(default_factory=list[bytes])

    @contextmanager
    def open(self, timeout: float) -> Iterator[Bed]:
        """A client."""
        yield self

    @contextmanager
    def consumer(self, group: str, topic: str, **more: object) -> Iterator[Bed]:
        """A member of the group."""
        yield self

    def call(self, node: str, kind: int, fields: dict[str, object]) -> Any:
        """The group as the master shows it."""
        return SimpleNamespace(fields={"group": {"lag": self.lag, "leased": 0}})

    def pop(self, most: int, wait: float) -> list[Any]:
        """The next planned answer, or an error."""
        found = self.pops.pop(0) if self.pops else []
        if isinstance(found, Exception):
            raise found
        return [SimpleNamespace(body=body, ack=lambda body=body: self.acked.append(body))
                for body in found]  # fmt: skip

    def settle(self) -> None:
        """Everything is settled, but for the first few times."""
        if self.unsettled > 0:
            self.unsettled -= 1
            raise Unavailable("away", code="unavailable")


def finished(bed: Bed, acknowledged: list[str], sent: list[str]) -> Any:
    """What one worker found."""
    workers = Workers(bed.open, "t", 1)  # type: ignore[arg-type]  # stands for a client
    workers.start()
    return workers.finish(acknowledged, sent, lambda: None)


def test_an_even_ledger() -> None:
    """Handled twice is counted; an error of the cluster is passed over."""
    away = Unavailable("away", code="unavailable")
    bed = Bed([[b"w1:0  ", b"w1:1"], away, [b"w1:1", b"w1:2"]], unsettled=1)
    found = finished(bed, ["w1:0", "w1:1", "w1:2"], ["w1:0", "w1:1", "w1:2"])
    assert found.even
    assert (found.messages, found.again) == (3, 1)
    assert len(bed.acked) == 4


def test_what_was_not_handled_or_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is named; so is what the group has left."""
    monkeypatch.setattr("cli.drill.workers.FINISH_SECONDS", 0.2)
    found = finished(Bed([[b"w1:0", b"x"]], lag=2), ["w1:0", "w1:1"], ["w1:0", "w1:1"])
    assert not found.even
    assert (found.missing, found.phantoms, found.left) == (("w1:1",), ("x",), 2)
    assert "w1:1" in found.text()
    assert "2 are left" in found.text()


def test_what_came_again_although_it_was_settled() -> None:
    """Its acknowledgement was confirmed, and then it was handed out."""
    found = finished(Bed([[b"w1:0"], [b"w1:0"]]), ["w1:0"], ["w1:0"])
    assert not found.even
    assert found.returned == ("w1:0",)
    assert "came again" in found.text()


def test_a_worker_that_ends_early_is_no_broken_promise() -> None:
    """The drill cannot tell."""
    with pytest.raises(Failure, match="ended early"):
        finished(Bed([ValueError("no")]), ["w1:0"], ["w1:0"])
