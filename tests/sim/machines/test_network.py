"""The simulated network keeps the promises of TCP and none beyond."""

from __future__ import annotations

from tests.sim.machines.network import Network, Weather
from tests.sim.schedule import Schedule


class Host:
    """An endpoint that remembers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 1
        self.alive = True
        self.seen: list[object] = []
        self.accepted = 0

    def stream_opened(self, incarnation: int, conn: int) -> None:
        """Remember."""
        self.seen.append("opened")

    def stream_accepted(self, incarnation: int, conn: int) -> None:
        """Remember the number."""
        self.accepted = conn

    def stream_frame(self, incarnation: int, conn: int, frame: object) -> None:
        """Remember the frame."""
        self.seen.append(frame)

    def stream_closed(self, incarnation: int, conn: int, why: str) -> None:
        """Remember why."""
        self.seen.append(f"closed: {why}")


def opened(seed: int = 1) -> tuple[Schedule, Network, Host, Host]:
    """Two hosts with an open stream, number 7 at the first."""
    schedule = Schedule(seed)
    network = Network(schedule)
    a, b = Host("a"), Host("b")
    network.dial(a, 7, b)
    schedule.run_until(1.0)
    assert a.seen == ["opened"]
    a.seen.clear()
    return schedule, network, a, b


def test_frames_arrive_once_and_in_order_whatever_the_delays() -> None:
    """Slow messages hold back those behind them, never overtake."""
    schedule, network, a, b = opened()
    network.weather = Weather(slow_share=0.3, slow_delay=2.0)
    for number in range(50):
        network.send(a, 7, number)
    network.close(a, 7, "done")
    schedule.run_until(100.0)
    assert b.seen == [*range(50), "closed: done"]
    assert a.seen == []


def test_a_block_holds_frames_back_and_lets_them_go() -> None:
    """One direction is silent, the other works, and nothing is lost."""
    schedule, network, a, b = opened()
    network.block("a", "b")
    network.send(a, 7, "held")
    network.send(b, b.accepted, "passes")
    schedule.run_until(5.0)
    assert (a.seen, b.seen) == (["passes"], [])
    network.unblock("a", "b")
    schedule.run_until(6.0)
    assert b.seen == ["held"]


def test_a_killed_process_resets_and_a_dead_machine_is_silent() -> None:
    """After a kill the peer hears of it; after a power loss only once the machine is up again."""
    schedule, network, a, b = opened()
    b.alive = False
    network.process_gone(b, silently=False)
    schedule.run_until(2.0)
    assert a.seen == ["closed: reset"]
    schedule, network, a, b = opened()
    b.alive = False
    network.process_gone(b, silently=True)
    network.send(a, 7, "into the void")
    schedule.run_until(5.0)
    assert a.seen == []
    b.alive, b.incarnation = True, 2
    network.send(a, 7, "is anybody there")
    schedule.run_until(10.0)
    assert a.seen == ["closed: reset"]
    assert b.seen == []


def test_a_cut_loses_what_is_under_way() -> None:
    """Both sides hear of a cut; frames that were on their way never arrive."""
    schedule, network, a, b = opened()
    network.send(a, 7, "lost")
    network.cut_some(1.0)
    schedule.run_until(5.0)
    assert (a.seen, b.seen) == (["closed: cut"], ["closed: cut"])


def test_dials_into_nothing_end() -> None:
    """A dead host refuses, a blocked one does not answer."""
    schedule, network, a, b = opened()
    b.alive = False
    network.dial(a, 8, b)
    schedule.run_until(2.0)
    b.alive = True
    network.block("b", "a")
    network.dial(a, 9, b)
    schedule.run_until(9.0)
    assert a.seen == ["closed: refused", "closed: no answer"]
