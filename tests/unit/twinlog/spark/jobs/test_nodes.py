"""verify and compare of running nodes over the wire: faults where they are; lag is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.app import main
from tests.fakes.node import FakeCluster
from tests.fakes.raw_log import RawNode, raw_nodes
from tests.stores.sample import SEGMENT, Ours
from twinlog.errors import UsageError
from twinlog.format.batch_index import KIND_FILLER, KIND_RECORDS, BatchEntry
from twinlog.format.record import decode
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Report, Verdict
from twinlog.spark.jobs.verify import nodes as verify_nodes
from twinlog.spark.jobs.verify import sides
from twinlog.spark.jobs.verify.compare import CompareSettings
from twinlog.spark.jobs.verify.compare import run as compare
from twinlog.spark.jobs.verify.directory import Level
from twinlog.spark.jobs.verify.nodes import NodesSettings

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def log(epochs: tuple[int, ...] = (1, 2)) -> Ours:
    """A log of several files."""
    made = Ours()
    for epoch in epochs:
        made.open_epoch(epoch)
        for number in range(30):
            made.batch(b"x" * 100, b"%d" % number, queue=number % 2)
    return made


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Nodes are added by the tests; n1 is master."""
    monkeypatch.setattr(sides, "STALENESS_SECONDS", 0.0)
    made = FakeCluster()
    yield made
    made.close()


def servers(made: FakeCluster) -> tuple[str, ...]:
    """The addresses."""
    return tuple(f"127.0.0.1:{node.port}" for node in made.nodes.values())


def verified(made: FakeCluster, size: int = 3000, level: Level = Level.CRC) -> Report:
    """The report, cut small."""
    return verify_nodes.run(PlainEngine(), NodesSettings(servers(made), "", level, size))


def batch(node: RawNode, number: int) -> BatchEntry:
    """A batch of records in the second file."""
    return [e for e in node.entries if e.start > SEGMENT and e.kind == KIND_RECORDS][number]


@pytest.mark.parametrize("size", [512, 777, 3000, 1 << 20])
def test_sound_nodes_are_proven_whatever_the_ranges(size: int, cluster: FakeCluster) -> None:
    """Every batch and record once, fillers included; a slave that lags is judged by what it has."""
    made = log()
    nodes = raw_nodes(cluster, made, "n1", "n2")
    nodes["n2"].confirm = batch(nodes["n2"], 2).start
    found = verified(cluster, size)
    assert (found.verdict, found.fields["wrong"]) == (Verdict.FINE, 0)
    records = sum(e.count for e in made.entries)
    below = [e for e in made.entries if e.end <= nodes["n2"].confirm]
    assert [tuple(row) for row in found.tables["nodes"].rows] == [
        ("n1", 0, made.end, len(made.entries), records, 0, "sound"),
        ("n2", 0, nodes["n2"].confirm, len(below), sum(e.count for e in below), 0, "sound"),
    ]
    assert any(e.kind == KIND_FILLER for e in below)


def test_faults_are_found_where_they_are(cluster: FakeCluster) -> None:
    """A flipped body, a header that names another place, and those behind them; n1 is sound."""
    nodes = raw_nodes(cluster, log(), "n1", "n2")
    one, two = batch(nodes["n2"], 1), batch(nodes["n2"], 4)
    nodes["n2"].log[one.start + 95] ^= 4
    nodes["n2"].log[two.start + 35] ^= 1
    found = verified(cluster)
    assert found.verdict is Verdict.DAMAGED
    rows = [tuple(row) for row in found.tables["findings"].rows]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("n2", one.start, "bit rot"),
        ("n2", two.start, "reappeared old record"),
    ]
    assert [row[6] for row in found.tables["nodes"].rows] == ["sound", "damaged"]
    assert str(found.fields["next"]).startswith("twinlog spark compare --servers ")
    assert verified(cluster, level=Level.STRUCTURE).fields["wrong"] == 1


def test_what_only_the_batch_index_sees(cluster: FakeCluster) -> None:
    """A flipped property, an entry that is lost, an epoch that falls."""
    nodes = raw_nodes(cluster, log(), "n1", "n2", "n3")
    flipped = batch(nodes["n1"], 0)
    nodes["n1"].log[flipped.end - 2] ^= 1
    lost = batch(nodes["n2"], 0)
    nodes["n2"].entries.remove(lost)
    at = nodes["n3"].entries.index(batch(nodes["n3"], 3))
    old = nodes["n3"].entries[at]
    fallen = (old.start, old.length, old.count, 0, old.crc, old.store_timestamp, old.kind, 0)
    nodes["n3"].entries[at] = BatchEntry(*fallen)
    found = verified(cluster)
    rows = {str(row[0]): (row[1], row[3]) for row in found.tables["findings"].rows}
    assert rows["n1"] == (flipped.start, "the batch does not match its CRC")
    assert rows["n2"] == (lost.start, f"the batch index goes from {lost.start} to {lost.end}")
    assert rows["n3"] == (old.start, f"epoch 0 behind epoch {old.epoch}")


def test_a_node_that_goes_is_not_called_sound(cluster: FakeCluster) -> None:
    """What could not be read is said so, exit 2; nothing is guessed."""
    nodes = raw_nodes(cluster, log(), "n1", "n2")

    def leave(offset: int) -> None:
        nodes["n2"].gone = offset >= SEGMENT

    nodes["n2"].before = leave
    found = verified(cluster)
    assert found.verdict is Verdict.UNDECIDED
    assert [row[6] for row in found.tables["nodes"].rows] == ["sound", "unread"]


def test_a_node_that_does_not_answer_is_named(cluster: FakeCluster) -> None:
    """Neither sound nor equal: verify and compare end with 2."""
    raw_nodes(cluster, log(), "n1", "n2", "n3")
    cluster.nodes["n3"].close()
    found = verified(cluster)
    assert found.verdict is Verdict.UNDECIDED
    assert [(row[0], row[6]) for row in found.tables["nodes"].rows] == [
        ("n1", "sound"), ("n2", "sound"), ("n3", "not reached"),
    ]  # fmt: skip
    found = compare(PlainEngine(), CompareSettings([], 3000, [servers(cluster)]))
    assert found.verdict is Verdict.UNDECIDED and found.fields["absent"] == ["n3"]
    assert found.head == "equal where both have bytes; n3 not reached"


def test_replicas_are_equal_and_lag_is_no_difference(cluster: FakeCluster) -> None:
    """Nodes of one cluster with its master; a slave that is behind or lost its front."""
    nodes = raw_nodes(cluster, log(), "n1", "n2", "n3")
    nodes["n2"].confirm -= 300
    nodes["n3"].start = SEGMENT
    found = compare(PlainEngine(), CompareSettings([], 3000, [servers(cluster)]))
    assert found.verdict is Verdict.FINE
    rows = [tuple(row) for row in found.tables["sides"].rows]
    assert [(row[0], row[1], row[4], row[6], row[7]) for row in rows] == [
        ("n1", "n2", None, 300, 0),
        ("n1", "n3", None, SEGMENT, 0),
    ]


def test_the_first_divergent_record_and_its_cause(cluster: FakeCluster, tmp_path: Path) -> None:
    """One bit on a slave: that record, that field, whose CRC holds; also against a directory."""
    nodes = raw_nodes(cluster, log(), "n1", "n2")
    hit = batch(nodes["n2"], 3)
    nodes["n2"].log[hit.start + 95] ^= 4
    found = compare(PlainEngine(), CompareSettings([], 3000, [servers(cluster)]))
    assert found.verdict is Verdict.NO
    assert found.tables["sides"].rows[0][4] == hit.start + 95
    good, bad = found.tables["records"].rows
    assert (good[0], bad[0], good[1], bad[1]) == ("n1", "n2", hit.start, hit.start)
    assert (good[8], bad[8]) == ("holds", "does not hold")
    assert good[9] == "differs in body; inside an epoch: corruption"
    root = log().write(tmp_path / "s")
    found = compare(PlainEngine(), CompareSettings([root], 3000, [servers(cluster)]))
    assert found.fields["logs"] == [str(root), ",".join(servers(cluster))]
    assert found.tables["sides"].rows[0][4] == hit.start + 95


def test_two_clusters_of_other_epochs(cluster: FakeCluster) -> None:
    """--servers twice: each cluster is one log; a cut that was missed is named."""
    other = FakeCluster()
    try:
        raw_nodes(cluster, log((1, 2)), "n1", "n2")
        raw_nodes(other, log((1, 3)), "n1")
        pair = [servers(cluster), servers(other)]
        found = compare(PlainEngine(), CompareSettings([], 3000, pair))
    finally:
        other.close()
    assert found.verdict is Verdict.NO
    text = str(found.tables["records"].rows[0][9])
    assert text.endswith("epoch 2 here, epoch 3 there: a cut was missed")


def test_the_commands(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes and what the calls need."""
    nodes = raw_nodes(cluster, log(), "n1", "n2")
    named = ["--servers", ",".join(servers(cluster)), "-o", "json"]
    assert main(["spark", "verify", *named, "--node", "n2"], PLAIN) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["node"] == "n2"
    assert main(["spark", "compare", *named], PLAIN) == 0
    capsys.readouterr()
    nodes["n2"].log[batch(nodes["n2"], 0).start + 95] ^= 1
    assert main(["spark", "verify", *named], PLAIN) == 65
    assert main(["spark", "compare", *named], PLAIN) == 1
    assert main(["spark", "verify", *named, "--level", "full"], PLAIN) == 64
    assert main(["spark", "verify", *named, "--node", "n9"], PLAIN) == 66
    assert main(["spark", "verify"], PLAIN) == 64
    assert main(["spark", "compare", "--servers", named[1].split(",")[0]], PLAIN) == 1
    with pytest.raises(UsageError, match="two directories or more, or a cluster"):
        compare(PlainEngine(), CompareSettings([]))
    assert decode(bytes(nodes["n1"].log), batch(nodes["n1"], 0).start).topic == "t"
