"""Decisions of a member: when it looks again, and how long it takes a lease to last."""

from __future__ import annotations

from tests.fakes.group_master import stored_record
from twinlog.format.messages import messages_of
from twinlog.groups.core import GroupCore
from twinlog.groups.leases import HANDED, Held
from twinlog.groups.outcomes import Told
from twinlog.groups.settings import SESSION_SECONDS, GroupSettings
from twinlog.wire.frames import ANSWER, Frame, Type
from twinlog.wire.groups import DONE, RECEIPT_EXPIRED, What


def joined(now: float = 0.0) -> GroupCore:
    """A member that has joined."""
    core = GroupCore(GroupSettings("billing", ("orders",), member="m", invisible=10.0), now)
    core.routed(fresh=True)
    [join] = core.requests(now)
    core.on_sent(1, join, now)
    fields: dict[str, object] = {
        "member": 7, "generation": 0, "session_ms": 10_000, "invisible_ms": 10_000, "rows": [],
    }  # fmt: skip
    core.on_answer(1, Frame(Type.JOIN, ANSWER, request=1, fields=fields), now, 0.0)
    return core


def handed(core: GroupCore, now: float) -> Held:
    """A message whose body has begun, under a lease of ten seconds."""
    [message] = messages_of(stored_record("orders", 0, 0, b"x"))
    held = Held(message, 1, 1, 1, now + 10.0)
    held.state, held.begun = HANDED, now
    core._handed[1, 1, 0] = held
    return held


def extended(core: GroupCore, held: Held, seconds: float, now: float, code: str) -> None:
    """Ask for another end, and hear the answer."""
    core.settle(held, Told(What.EXTEND, round(1000 * seconds)), now)
    core.urge()
    [request] = [one for one in core.requests(now) if one.rows]
    core.on_sent(9, request, now)
    fields: dict[str, object] = {"rows": [[code, 0]], "now_ms": 0}
    core.on_answer(9, Frame(Type.SETTLE, ANSWER, request=9, fields=fields), now, 0.0)


def test_a_member_does_not_spin_while_its_sign_of_life_is_unanswered() -> None:
    """A node that is silent is doubted when the answer is overdue, and nothing happens before."""
    core = joined()
    core.on_sent(2, core._beat(), 0.0)
    now = SESSION_SECONDS / 3
    core.patient(now)
    assert core.wake(now) > now


def test_a_longer_lease_counts_once_it_is_granted() -> None:
    """Until then, and if it is refused, the member goes by the end that it knows."""
    core = joined()
    held = handed(core, 0.0)
    core.settle(held, Told(What.EXTEND, 60_000), 1.0)
    assert held.ends == 10.0
    core = joined()
    held = handed(core, 0.0)
    extended(core, held, 60.0, 1.0, RECEIPT_EXPIRED)
    assert held.ends == 10.0
    extended(core, held, 60.0, 2.0, DONE)
    assert 60.0 < held.ends <= 62.0


def test_a_shorter_lease_counts_at_once() -> None:
    """The node may end it before its answer comes."""
    core = joined()
    held = handed(core, 0.0)
    core.settle(held, Told(What.EXTEND, 1_500), 1.0)
    assert held.ends == 2.5
