"""Refusals that help the client on."""

from __future__ import annotations

import pytest

from tests.unit.node.clients.answering import answers
from twinlog.errors import (
    Busy,
    NotEnoughInSync,
    NotMaster,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        ("not-enough-in-sync", NotEnoughInSync, "too few nodes in sync"),
        ("busy", Busy, "reached a limit"),
        ("disk-full", Unavailable, "disk of n1 is full"),
        ("disk", Unavailable, "disk of n1 is full"),
        ("unknown-topic", UnknownTopic, ""),
        ("stopping", Unavailable, "n1 refuses: stopping"),
    ],
)
def test_refusals_of_the_whole_node(code: str, error: type[TwinlogError], text: str) -> None:
    """A code of the core becomes the error that helps its client on."""
    found = answers().refusals.error(code, "")
    assert isinstance(found, error)
    assert text in found.text


@pytest.mark.parametrize("code", ["topic", "queues"])
def test_an_order_that_will_never_do_is_final(code: str) -> None:
    """Nobody waits until the deadline for a topic that may not be created."""
    found = answers().refusals.error(code, "%LMQ%a is a light queue")
    assert isinstance(found, UsageError)
    assert (found.code, found.text) == (code, "%LMQ%a is a light queue")
    assert not found.retryable


def test_not_master_names_the_master_and_where_it_listens() -> None:
    """Or says that nobody is known; a node never sends a client to itself."""
    found = answers().refusals.error("not-master", "")
    assert isinstance(found, NotMaster)
    assert (found.facts["leader"], found.facts["host"], found.facts["port"]) == ("n2", "h2", 72)
    for leader in (None, "n1"):
        nobody = answers(leader).refusals.error("not-master", "")
        assert "none is known" in nobody.text
        assert nobody.facts["leader"] is None
        assert nobody.facts["host"] is None
