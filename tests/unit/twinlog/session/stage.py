"""A client's call step by step, against nodes that answer as a script says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twinlog.session.routing import Address
from twinlog.session.session import Ask, LinkDown, Pause, Session, Steps
from twinlog.wire import frames
from twinlog.wire.frames import Frame, Type

T = TypeVar("T")
A, B, C = (Address("127.0.0.1", port) for port in (7410, 7420, 7430))
Reply = Frame | LinkDown
DOWN = LinkDown("cannot be reached", sent=False)
LOST = LinkDown("broke off", sent=True)


def metadata(
    leader: str | None,
    epoch: int,
    *,
    cluster: str = "demo",
    moved: dict[str, Address] | None = None,
) -> Frame:
    """Return a METADATA answer of the cluster a, b, c."""
    places = {"a": A, "b": B, "c": C, **(moved or {})}
    nodes = [
        {"name": name, "host": at.host, "client_port": at.port, "state": "streaming"}
        for name, at in places.items()
    ]
    nodes.append({"name": "silent", "state": "starting"})
    fields: dict[str, object] = {
        "cluster": cluster,
        "group": "g1",
        "epoch": epoch,
        "leader": leader,
        "nodes": nodes,
        "topics": {"orders": 4},
        "family": 4,
        "message_size_max": 100,
    }
    return Frame(Type.METADATA, frames.ANSWER, fields=fields)


def error(kind: Type, code: str, *, retryable: bool, **facts: object) -> Frame:
    fields: dict[str, object] = {"code": code, "text": code, "hint": None, "retryable": retryable}
    return Frame(kind, frames.ANSWER | frames.ERROR, fields={**fields, **facts})


def created() -> Frame:
    return Frame(Type.TOPIC, frames.ANSWER, fields={"created": True, "queues": 4})


def offsets(role: str) -> Frame:
    fields: dict[str, object] = {"queues": {}, "confirm": 0, "age_ms": 0, "role": role}
    return Frame(Type.OFFSETS, frames.ANSWER, fields=fields)


class Stage:
    """Carries out steps from a script; the clock moves by what is waited for."""

    def __init__(self, *endpoints: Address) -> None:
        self.asked: list[tuple[str, str]] = []
        self.session = Session(endpoints, random=lambda: 1.0)
        self.names = {A: "a", B: "b", C: "c"}

    @property
    def now(self) -> float:
        return self.session.now

    @now.setter
    def now(self, value: float) -> None:
        self.session.now = value

    def play(self, steps: Steps[T], answer: Callable[..., Reply]) -> T:
        """Run a call; ``answer(name, frame)`` says what a node does."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Ask):
                    name = self.names.get(step.address, str(step.address))
                    self.asked.append((name, Type(step.frame.type).name))
                    reply = answer(name, step.frame)
                    if isinstance(reply, LinkDown):
                        self.now += step.seconds if reply.sent else 0.001
                        step = steps.throw(reply)
                    else:
                        self.now += 0.001
                        step = steps.send(reply)
                else:
                    assert isinstance(step, Pause)
                    self.now += step.seconds
                    self.asked.append(("pause", f"{step.seconds:.3f}"))
                    step = steps.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
