"""Sends and acknowledgements in one batch: what it costs of a quota."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.groups.together import Together, TogetherFields
from node.topics.quotas import Quotas
from storage.messaging.groups import Group
from storage.state.sections import Outcome, Section
from storage.state.sections import Together as Appended


@pytest.mark.parametrize(
    ("outcome", "costs"),
    [(Outcome.STORED, True), (Outcome.REFUSED, False), (Outcome.DUPLICATE, False),
     (Outcome.UNKNOWN, True)],
)  # fmt: skip
def test_what_was_not_stored_costs_no_quota(outcome: Outcome, costs: bool) -> None:
    """Refused on a full disk, for example: the next one is not over the quota for it."""
    limits = {"t": (10, 0)}
    quotas = Quotas(lambda: limits, lambda *_, **__: None)

    def append_rows(now: float, rows: Any, *, reply: Any, **terms: Any) -> None:
        reply(Appended(outcome, [], 0, "disk-full", "as the test wants"), None)

    context: Any = SimpleNamespace(
        messaging=SimpleNamespace(standing=lambda name: Group(name), ahead=None),
        members=SimpleNamespace(get=lambda *_: SimpleNamespace(group="g", name="m", member=1)),
        group=lambda name: Group(name), session=lambda *_: SimpleNamespace(heard_at=0.0),
        driver=SimpleNamespace(
            store=SimpleNamespace(stored_before=lambda sections: None), append_rows=append_rows,
            reign=lambda: (1, None),
        ),
        quotas=quotas, due=None, records=None, counts=SimpleNamespace(settled=None),
        clock=SimpleNamespace(ms=1), refusal=lambda code, text: code,
    )  # fmt: skip
    turn: Any = SimpleNamespace(now=0.0, now_ms=0, leasing=None, together=[])
    sections = [Section("t", 0, 10, b"x")]
    said = list[Any]()
    asked = TogetherFields("g", 1, sections, [], [], 1.0)
    Together(context).decide(asked, cast("Any", None), said.append, turn)
    turn.together[0]()
    assert len(said) == 1
    assert (quotas.admit(sections, 0.0) is not None) is costs
