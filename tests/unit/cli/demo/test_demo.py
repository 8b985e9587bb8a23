"""``twinlog demo``: its input, its bookkeeping, comparing logs, how it ends."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cli.demo import story
from cli.demo.input import Flight, flights
from cli.demo.ledger import Comparison, Ledger, compare
from cli.dev.private_cluster import first_difference
from cli.failures import Exit, Failure
from tests.fakes.cli_cluster import FakeCluster

HEADER = "year,dep_time,carrier,tailnum,delay\n"
LINES = "2013,517,UA,N14228,2.5\n2013,NA,9E,NA,-3\n"


def test_the_packed_input_is_january() -> None:
    """27,004 rows, 16 carriers, 155 without a key, as the data's page says."""
    rows = flights()
    assert len(rows) == 27_004
    assert len({row.tag for row in rows}) == 16
    assert sum(row.key is None for row in rows) == 155
    first = json.loads(rows[0].body)
    assert list(first)[:4] == ["year", "month", "day", "dep_time"]
    assert (first["dep_time"], first["tailnum"], first["distance"]) == (517, "N14228", 1400)
    assert b" " not in rows[0].body


@pytest.mark.parametrize("kind", ["csv", "gz", "xz"])
def test_another_input(kind: str, tmp_path: Path) -> None:
    """CSV plain or packed; NA is null and no key; numbers are numbers, names stay text."""
    data = (HEADER + LINES).encode()
    path = tmp_path / f"x.{'csv' if kind == 'csv' else f'csv.{kind}'}"
    packed = {"csv": data, "gz": gzip.compress(data, mtime=0), "xz": lzma.compress(data)}[kind]
    path.write_bytes(packed)
    one, two = flights(path)
    assert one.body == (
        b'{"year":2013,"dep_time":517,"carrier":"UA","tailnum":"N14228","delay":2.5}'
    )
    assert two.body == b'{"year":2013,"dep_time":null,"carrier":"9E","tailnum":null,"delay":-3}'
    assert (two.row, two.key, two.tag) == (1, None, "9E")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.csv", b""),
        ("head.csv", HEADER.encode()),
        ("short.csv", HEADER.encode() + b"2013,1\n"),
        ("no.csv.gz", b"nonsense"),
        ("no.csv.xz", b"nonsense"),
        ("torn.csv.gz", gzip.compress(LINES.encode(), mtime=0)[:-9]),
        ("latin.csv", HEADER.encode() + b"2013,1,\xff,a,2\n"),
    ],
)
def test_input_that_is_none(name: str, data: bytes, tmp_path: Path) -> None:
    """Exit 65 and the name of the file; never a trace."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Failure) as caught:
        flights(tmp_path / name)
    assert caught.value.exit is Exit.DATA
    assert name in caught.value.text


@dataclass
class Found:
    """A message as a reader finds it."""

    row: int
    body: bytes = b"x"
    key: str | None = None
    tag: str | None = "UA"
    topic: str = "flights"
    queue: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    born_timestamp: int = 0
    store_timestamp: int = 0
    properties: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.properties = {"row": str(self.row)} if self.row >= 0 else {}


def expected(row: int) -> Flight:
    """The row as it was sent."""
    return Flight(row, b"x", "UA", None)


def test_promises_kept() -> None:
    """Everything acknowledged is there once; more without an acknowledgement is no breach."""
    found = compare({0, 1}, [Found(0), Found(1), Found(2)], expected)
    assert (found.found, found.lost, found.duplicated, found.different) == (2, (), (), ())
    assert found.extra == 1
    assert found.kept


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([Found(0)], "lost"),
        ([Found(0), Found(1), Found(1)], "duplicated"),
        ([Found(0), Found(1, body=b"y")], "different"),
        ([Found(0), Found(1, tag="AA")], "different"),
        ([Found(0), Found(1, key="k")], "different"),
        ([Found(0), Found(1), Found(-1)], "different"),
        ([Found(0), Found(1), Found(7), Found(7)], "duplicated"),
    ],
)
def test_promises_broken(messages: list[Found], what: str) -> None:
    """Each breach is seen for what it is."""
    found = compare({0, 1}, messages, expected)
    assert not found.kept
    assert getattr(found, what)


def test_the_write_gap() -> None:
    """The time without acknowledgements around a moment; none while one side is missing."""
    ledger = Ledger()
    assert ledger.gap(1.0) is None
    for row, at in enumerate((1.0, 1.1, 1.1, 3.0, 3.1)):
        ledger.acknowledge([row], at)
    assert ledger.gap(1.5) == 1.9
    assert ledger.first_after(1.5) == 3.0
    assert ledger.first_after(3.1) is None
    assert ledger.gap(0.5) is None
    assert ledger.gap(5.0) is None


def log(folder: Path, files: dict[int, bytes]) -> Path:
    """A data directory with these log files."""
    (folder / "commitlog").mkdir(parents=True)
    for start, data in files.items():
        (folder / "commitlog" / f"{start:020d}").write_bytes(data)
    return folder


def test_logs_are_compared_byte_for_byte(tmp_path: Path) -> None:
    """Equal below the end; the first difference and a missing file are found."""
    a = log(tmp_path / "a", {0: b"0123456789", 10: b"abcdefghij"})
    b = log(tmp_path / "b", {0: b"0123456789", 10: b"abcdeXXXXX"})
    c = log(tmp_path / "c", {0: b"0123456789"})
    assert first_difference([a, b], 15) is None
    assert first_difference([a, b], 16) == 15
    assert first_difference([a, c], 10) is None
    assert first_difference([a, c], 11) == 10
    assert first_difference([a, log(tmp_path / "d", {0: b"01234"})], 10) == 5


def few(directory: Path) -> str:
    """A small input."""
    path = directory / "few.csv"
    path.write_text(HEADER + LINES, encoding="utf-8")
    return str(path)


class Nowhere:
    """A cluster that starts nothing and remembers that it was closed."""

    directory = Path("/nowhere")
    path = directory / "cluster.toml"
    closed = 0

    def __init__(self, *_: object, **__: object) -> None:
        Nowhere.closed = 0

    def close(self) -> None:
        """Count."""
        Nowhere.closed += 1


GOOD = Comparison(found=2, lost=(), duplicated=(), different=(), extra=0)


@pytest.mark.parametrize(
    ("at_end", "difference", "code"),
    [
        (GOOD, None, Exit.OK),
        (replace(GOOD, lost=(7,)), None, Exit.NO),
        (replace(GOOD, duplicated=(7,)), None, Exit.NO),
        (replace(GOOD, different=(7,)), None, Exit.NO),
        (GOOD, 4096, Exit.NO),
        (None, None, Exit.NO),
    ],
)
def test_a_broken_promise_is_exit_1(
    at_end: Comparison | None,
    difference: int | None,
    code: Exit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table and the document say which; the cluster is tidied away either way."""

    def pretend(self: story.Demo, rows: list[Flight]) -> None:
        self.report.ledger.acknowledge([0, 1], 1.0)
        self.report.from_slave, self.report.at_end = GOOD, at_end
        self.report.difference = difference
        for row in (0, 1):
            self.report.handlings.note(row, 1.0, 31.0)
        self.report.lag = 0

    monkeypatch.setattr(story, "PrivateCluster", Nowhere)
    monkeypatch.setattr(story.Demo, "run", pretend)
    got, out, _ = FakeCluster(tmp_path).run("demo", "--input", few(tmp_path), "-o", "json")
    document = json.loads(out)
    assert got == code
    assert document["promises_kept"] is (code is Exit.OK)
    assert document["logs_equal"] is (difference is None)
    assert Nowhere.closed == 1


def test_the_group_is_part_of_the_promise() -> None:
    """All is handled, nothing is left, and again only after the lease before."""
    report = story.Report(from_slave=GOOD, at_end=GOOD, lag=0)
    report.ledger.acknowledge([0, 1], 1.0)
    report.handlings.note(0, 1.0, 31.0)
    assert not report.kept, "row 1 was not handled"
    report.handlings.note(1, 1.0, 31.0)
    report.handlings.note(1, 31.0, 61.0)
    assert (report.kept, report.handlings.again) == (True, 1)
    for lag in (None, 1):
        assert not replace(report, lag=lag).kept, "something is left, or nobody can tell"
    report.handlings.note(1, 60.0, 90.0)
    assert not report.kept, "row 1 was handled again under a lease"


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), Exit.INTERRUPTED), (Failure(Exit.UNDECIDED, "no"), Exit.UNDECIDED)],
)
def test_a_demo_that_ends_early_tidies_up(
    error: BaseException, code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result is printed; the cluster is stopped and its files are gone, even with --keep."""

    def end(self: story.Demo, rows: list[Flight]) -> None:
        raise error

    monkeypatch.setattr(story, "PrivateCluster", Nowhere)
    monkeypatch.setattr(story.Demo, "run", end)
    got, out, _ = FakeCluster(tmp_path).run(
        "demo", "--input", few(tmp_path), "--keep", "-o", "json"
    )
    assert (got, out, Nowhere.closed) == (code, "", 1)
