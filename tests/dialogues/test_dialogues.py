"""Golden dialogues: what nodes say to each other and do, as text that a person can check.

A file holds blocks: commands, a line ``----``, and what they lead to. ``TWINLOG_REWRITE=1`` writes
what happens now into the files; read the difference before you believe it. Heartbeats, reads of the
register and notes to the history are left out.

Commands: ``group n1 n2 n3 [min N] [ack durable]``, ``boot NODE|all``, ``kill``, ``restart``,
``pause``, ``resume NODE``, ``cut A B``, ``heal``, ``wait SECONDS``, ``send NODE BYTES [ACK]``,
``failover NODE``, ``transfer NODE TO``, ``full NODE``, ``space NODE``, ``damage A B``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from replication.register.operations import Failover
from tests.dialogues.world import Node, World
from twinlog.wire import frames

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))


class Story:
    """Carries out the commands of one file."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.sent: dict[str, str] = {}

    def do(self, line: str) -> list[str]:
        """Carry out one command and return the new lines of the story."""
        words = line.split()
        if words[0] == "group":
            self._group(words[1:])
            return []
        world = self.world
        assert world is not None, "a story begins with its group"
        before = len(world.trace)
        getattr(self, f"_{words[0]}")(world, *words[1:])
        lines = world.trace[before:]
        for key, label in list(self.sent.items()):
            outcome = world.outcome(key)
            if outcome is not None:
                del self.sent[key]
                by = world.replies[key][0][1]
                lines.append(f"{label}  {outcome[0].name.lower()}" + (f" by {by}" if by else ""))
        return lines

    def _group(self, words: list[str]) -> None:
        names = [word for word in words if word.startswith("n")]
        least = int(words[words.index("min") + 1]) if "min" in words else 2
        ack = "durable" if "durable" in words else "received"
        self.world = World(*names, min_in_sync=least, ack=ack)

    def _boot(self, world: World, name: str) -> None:
        for node in world.names if name == "all" else (name,):
            world.boot(node)
        world.run(0.05)

    def _kill(self, world: World, name: str) -> None:
        world.kill(name)
        world.run(0.01)

    def _restart(self, world: World, name: str) -> None:
        world.restart(name)
        world.run(0.3)

    def _pause(self, world: World, name: str) -> None:
        world.pause(name)

    def _resume(self, world: World, name: str) -> None:
        world.resume(name)
        world.run(0.05)

    def _cut(self, world: World, one: str, other: str) -> None:
        world.partition(one, other)

    def _heal(self, world: World) -> None:
        world.heal()

    def _wait(self, world: World, seconds: str) -> None:
        world.run(float(seconds))

    def _send(self, world: World, name: str, size: str, ack: str = "confirmed") -> None:
        self.sent[world.send(name, int(size), ack=ack)] = f"client of {name}"
        world.run(0.02)

    def _failover(self, world: World, name: str) -> None:
        assert world.apply(Failover(name, world.register.state.epoch, "alice", "failover")).ok
        world.note(f"operator  failover to {name}")
        world.run(0.2)

    def _transfer(self, world: World, name: str, to: str) -> None:
        node = world.nodes[name]

        def reply(code: str, text: str) -> None:
            world.note(f"operator of {name}  {code}")

        node.tell(lambda now: node.driver.transfer(now, to, reply, who="alice"))
        world.run(0.2)

    def _full(self, world: World, name: str) -> None:
        world.nodes[name].store.full = True

    def _space(self, world: World, name: str) -> None:
        world.nodes[name].store.full = False

    def _damage(self, world: World, source: str, target: str) -> None:
        def bend(one: Node, other: Node, frame: frames.Frame) -> frames.Frame:
            if (one.name, other.name) != (source, target) or not len(frame.payload):
                return frame
            world.bender = None
            return replace(frame, payload=b"?" + bytes(frame.payload)[1:])

        world.bender = bend


def play(text: str) -> str:
    """Return the file's text with what happens now below each command block."""
    story, out, commands = Story(), list[str](), list[str]()
    answering = False
    for line in text.splitlines():
        if line == "----":
            answering = True
            out.append(line)
            for command in commands:
                out.extend(story.do(command))
            commands = []
        elif answering and line:
            continue
        elif answering:
            answering = False
            out.append(line)
        else:
            out.append(line)
            if line and not line.startswith("#"):
                commands.append(line)
    return "\n".join(out).rstrip("\n") + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_dialogue(path: Path) -> None:
    """What is said is what the file says."""
    text = path.read_text(encoding="utf-8")
    played = play(text)
    if os.environ.get("TWINLOG_REWRITE") == "1":
        path.write_text(played, encoding="utf-8")
    assert played == text


def test_there_are_dialogues() -> None:
    """A runner without files proves nothing."""
    assert len(FILES) >= 8
