"""``message send``: every line has its outcome, bodies are stored byte by byte."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.app import report
from cli.context import Context
from cli.failures import Exit, Interrupted
from cli.message.send import Acknowledge, send
from cli.options import split
from cli.render import Printer
from tests.fakes.cli_cluster import FakeCluster as Commands
from tests.fakes.node import Arrived, FakeCluster, Keep
from twinlog.client.blocking import Client
from twinlog.errors import OutcomeUnknown, Unavailable
from twinlog.producer.section import Section, raised_for
from twinlog.wire.frames import Type


@pytest.fixture
def nodes() -> Iterator[FakeCluster]:
    """One node that answers over loopback."""
    made = FakeCluster(message_size_max=1000)
    made.add_node("n1")
    yield made
    made.close()


def run(
    nodes: FakeCluster, tmp_path: Path, *words: str, stdin: str, timeout: float = 60.0
) -> tuple[int, str, str]:
    """Call ``message send orders`` as a user would."""
    with Client(nodes.nodes["n1"].address, timeout=timeout) as client:
        commands = Commands(tmp_path, client=client)
        return commands.run("message", "send", "orders", *words, stdin=stdin)


def test_lines_go_to_the_queue_that_is_named(nodes: FakeCluster, tmp_path: Path) -> None:
    """``--queue`` holds for ``--lines`` as for one message."""
    code, _, err = run(nodes, tmp_path, "--lines", "--queue", "2", stdin="a\nb\nc\n")
    assert code == Exit.OK, err
    assert [len(nodes.queues.get(("orders", queue), [])) for queue in range(4)] == [0, 0, 3, 0]


def test_a_line_that_is_refused(nodes: FakeCluster, tmp_path: Path) -> None:
    """What came before it is stored and shown, and the line is named."""
    text = "a\nb\n" + "x" * 2000 + "\nc\n"
    code, out, err = run(nodes, tmp_path, "--lines", "-o", "name", "--queue", "1", stdin=text)
    assert code == Exit.DATA
    assert out.splitlines() == ["orders/1@0", "orders/1@1"]
    assert "of 2 lines 2 are confirmed" in err
    assert "line 3 was refused; what follows it was not sent" in err


def test_lines_that_nobody_answered_for(nodes: FakeCluster, tmp_path: Path) -> None:
    """Unknown is 75, whatever else went wrong, and what is known is counted."""
    kept: list[Arrived] = []

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND:
            kept.append(arrived)
            raise Keep
        return False

    nodes.nodes["n1"].faults.append(silent)
    code, out, err = run(nodes, tmp_path, "--lines", stdin="a\nb\n", timeout=0.2)
    assert (code, out) == (Exit.UNKNOWN, "")
    assert err.startswith("unknown: 2 messages may or may not be stored\n")
    assert "of 2 lines 0 are confirmed, 2 may or may not be stored" in err


def test_unknown_is_told_before_not_stored() -> None:
    """One error stands for many: it must not say of what may be stored that it is not."""
    sections = [
        Section("orders", queue, producer=1, epoch=0, sequence=0, due=0.0) for queue in range(3)
    ]
    assert raised_for(sections) is None
    sections[1].error = Unavailable("no node took it")
    assert raised_for(sections) is sections[1].error
    sections[2].error = OutcomeUnknown("no answer")
    assert raised_for(sections) is sections[2].error


@pytest.mark.parametrize(
    ("raw", "lines", "stored"),
    [
        (b"a\r\nb\rc\xff\n", False, [b"a\r\nb\rc\xff"]),
        (b"one\r\n", False, [b"one"]),
        (b"a\r\nb\rc\xff\n", True, [b"a", b"b\rc\xff"]),
    ],
)
def test_stdin_is_stored_byte_by_byte(
    nodes: FakeCluster, raw: bytes, lines: bool, stored: list[bytes]
) -> None:
    """Line ends inside a message stay, and it need not be text."""
    printer = Printer(split([], {})[0], io.StringIO(), io.StringIO())
    stdin = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8")
    with Client(nodes.nodes["n1"].address, timeout=60.0) as client:
        context = Context(
            printer=printer,
            stdin=stdin,
            open_client=lambda endpoints, timeout, named, tls: Client(
                nodes.nodes["n1"].address, timeout=60.0
            ),
        )
        context.options = split(["-e", nodes.nodes["n1"].address], {})[0]
        try:
            code = send("orders", lines=lines, queue=0, ack=Acknowledge.CONFIRMED, context=context)
        except BaseException as error:
            code = report(error, printer)
        assert code == Exit.OK
        assert [message.body for message in client.read("orders", queue=0)] == stored


class Interrupting(io.BytesIO):
    """Input that ends as by Ctrl-C."""

    def __next__(self) -> bytes:
        """Return the next line; instead of the end, interrupt."""
        line = self.readline()
        if not line:
            raise KeyboardInterrupt
        return line


def test_lines_are_shown_as_they_are_stored(nodes: FakeCluster) -> None:
    """An endless input is not kept, and what an interruption leaves has been shown."""

    def status(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.STATUS:
            return False
        arrived.refuse("busy", "not now")
        return True

    nodes.nodes["n1"].faults.append(status)
    out = io.StringIO()
    printer = Printer(split(["-o", "name"], {})[0], out, io.StringIO())
    stdin = io.TextIOWrapper(Interrupting((b"x" * 900 + b"\n") * 20_000), encoding="utf-8")
    context = Context(
        printer=printer,
        stdin=stdin,
        open_client=lambda endpoints, timeout, named, tls: Client(
            nodes.nodes["n1"].address, timeout=60.0
        ),
    )
    context.options = split(["-e", nodes.nodes["n1"].address, "-o", "name"], {})[0]
    with pytest.raises(Interrupted):
        send("orders", lines=True, queue=0, ack=Acknowledge.CONFIRMED, context=context)
    shown = out.getvalue().splitlines()
    assert len(shown) > 1000
    assert shown == [f"orders/0@{number}" for number in range(len(shown))]
