"""The archive of a running cluster: who is asked, what is proven, who is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from cli.app import main
from tests.fakes.node import FakeCluster
from tests.fakes.raw_log import RawNode, raw_nodes
from tests.stores.engines import Racing
from tests.stores.sample import SEGMENT, Ours
from twinlog.errors import CorruptionError, TwinlogError
from twinlog.spark.archive import job, notify_nodes
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict
from twinlog.spark.errors import SourceUnavailable

T = TypeVar("T")
R = TypeVar("R")
PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def log(records: int = 60) -> Ours:
    """A log of several files and two epochs."""
    made = Ours()
    for epoch in (1, 2):
        made.open_epoch(epoch)
        for number in range(records // 2):
            made.batch(b"x" * 100, b"%d" % number, topic=f"t{number % 3}", queue=number % 2)
    return made


Cluster = tuple[dict[str, RawNode], tuple[str, ...]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Three nodes with one log; n1 is master. What cannot be served is not waited for."""
    monkeypatch.setattr(job, "STALENESS_SECONDS", 0.0)
    made = FakeCluster()
    found = raw_nodes(made, log(), "n1", "n2", "n3")
    try:
        yield found, tuple(f"127.0.0.1:{node.port}" for node in made.nodes.values())
    finally:
        made.close()


def settings(cluster: Cluster, to: Path, **more: str) -> ArchiveSettings:
    """Archive that cluster."""
    return ArchiveSettings(None, to, servers=cluster[1], **more)  # type: ignore[arg-type]


def sealed(cluster: Cluster) -> int:
    """Log offset up to which whole files are confirmed."""
    return max(n.confirm for n in cluster[0].values()) // SEGMENT * SEGMENT


def test_every_sealed_file_comes_from_slaves_byte_for_byte(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Slaves share the files, the master serves none; restored, log and batch index are theirs."""
    nodes, to = cluster[0], tmp_path / "archive"
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.fields["covered_end"] == sealed(cluster) >= 3 * SEGMENT
    assert not nodes["n1"].asked and nodes["n2"].asked and nodes["n3"].asked
    segment = ArchiveDir(to).newest().segments[0]
    assert (segment.group, segment.base, list(segment.epochs)) == ("g1", 0, [(1, 0)])
    back = tmp_path / "back"
    restore(PlainEngine(), RestoreSettings(to, back))
    for path in sorted((back / "commitlog").iterdir()):
        start = int(path.name)
        assert path.read_bytes() == nodes["n1"].log[start : start + SEGMENT]
        own = [e for e in nodes["n1"].entries if start <= e.start < start + SEGMENT]
        index = back / "twinlog" / "batches" / path.name
        assert index.read_bytes() == b"".join(entry.pack() for entry in own)


def test_all_nodes_are_told_what_the_manifest_proves(cluster: Cluster, tmp_path: Path) -> None:
    """One that is away is in the report and told by the next run; nothing twice."""
    nodes, to = cluster[0], tmp_path / "archive"
    nodes["n3"].gone = True
    found = archive(PlainEngine(), settings(cluster, to))
    rows = {str(row[0]): row[1:] for row in found.tables["told"].rows}
    assert rows["n1"] == rows["n2"] == (sealed(cluster), "told")
    assert rows["n3"][0] is None and "closed the connection" in str(rows["n3"][1])
    assert nodes["n1"].mark == nodes["n2"].mark == sealed(cluster) and not nodes["n3"].mark
    nodes["n3"].gone = False
    again = archive(PlainEngine(), settings(cluster, to))
    assert again.fields["segments_added"] == 0
    assert nodes["n3"].mark == sealed(cluster) and again.verdict is Verdict.FINE


def test_nothing_is_told_of_files_that_are_gone(cluster: Cluster, tmp_path: Path) -> None:
    """A node that returns is told only what is whole before them; so is one that was told."""
    nodes, to = cluster[0], tmp_path / "archive"
    nodes["n3"].gone = True
    archive(PlainEngine(), settings(cluster, to))
    (to / ArchiveDir(to).newest().segments[1].data[0].path).unlink()
    nodes["n3"].gone = False
    for _ in range(2):
        again = archive(PlainEngine(), settings(cluster, to))
        assert again.verdict is Verdict.DAMAGED and nodes["n3"].mark == SEGMENT
        assert [row[0] for row in again.tables["damaged"].rows] == [SEGMENT]
    assert nodes["n1"].mark == sealed(cluster)


def test_what_a_node_lacks_is_read_before_it_is_told(cluster: Cluster, tmp_path: Path) -> None:
    """The same length with other bytes: nothing is told from that segment on."""
    nodes, to = cluster[0], tmp_path / "archive"
    nodes["n3"].gone = True
    archive(PlainEngine(), settings(cluster, to))
    path = to / ArchiveDir(to).newest().segments[1].data[0].path
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    nodes["n3"].gone = False
    again = archive(PlainEngine(), settings(cluster, to))
    assert again.verdict is Verdict.DAMAGED and nodes["n3"].mark == SEGMENT


def test_files_that_go_before_the_commit_are_not_committed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Another archiver took them for orphans: no manifest, nobody is told."""
    nodes, to = cluster[0], tmp_path / "archive"

    class Losing(PlainEngine):
        spreads = 0

        def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
            found = super().spread(work, items)
            Losing.spreads += 1
            if Losing.spreads == 1:
                next((to / "data").rglob("*.parquet")).unlink()
            return found

    with pytest.raises(CorruptionError, match="is gone"):
        archive(Losing(), settings(cluster, to))
    assert ArchiveDir(to).newest() == Manifest() and not nodes["n1"].mark


def test_a_log_that_went_another_way_is_not_added(cluster: Cluster, tmp_path: Path) -> None:
    """The same name and group, other bytes, further than the archive: nothing is added or told."""
    nodes, to = cluster[0], tmp_path / "archive"
    archive(PlainEngine(), settings(cluster, to))
    made = log(120)
    for node in nodes.values():
        node.log = bytearray(bytes(made.log).ljust(-(-made.end // SEGMENT) * SEGMENT, b"\0"))
        node.entries, node.confirm, node.mark = list(made.entries), made.end, 0
    with pytest.raises(CorruptionError, match="differs from what was archived") as caught:
        archive(PlainEngine(), settings(cluster, to))
    assert caught.value.facts["offset"] == ArchiveDir(to).newest().segments[-1].base
    assert ArchiveDir(to).newest().number == 1 and not any(node.mark for node in nodes.values())


def test_the_same_log_grows_on_in_the_archive(cluster: Cluster, tmp_path: Path) -> None:
    """Compared with what is archived, though a slave serves damaged bytes of it."""
    nodes, to = cluster[0], tmp_path / "archive"
    whole = {name: node.confirm for name, node in nodes.items()}
    for node in nodes.values():
        node.confirm = 2 * SEGMENT
    archive(PlainEngine(), settings(cluster, to))
    for name, node in nodes.items():
        node.confirm = whole[name]
    nodes["n2"].log[SEGMENT + 200] ^= 1
    nodes["n2"].mark = 0
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.fields["covered_end"] == sealed(cluster) and found.fields["manifest"] == 2


def test_a_stranger_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """The manifest names its cluster; another one adds nothing and is told nothing."""
    nodes, to = cluster[0], tmp_path / "archive"
    place = ArchiveDir(to)
    made = log()
    made.write(tmp_path / "s", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(tmp_path / "s", to))
    one = replace(place.newest(), cluster="other")
    place.path_of(1).write_text(one.text())
    for origin in (settings(cluster, to), ArchiveSettings(tmp_path / "s", to, notify=cluster[1])):
        with pytest.raises(
            CorruptionError, match="of the cluster 'other', the nodes are of 'demo'"
        ):
            archive(PlainEngine(), origin)
    assert place.newest() == one and not any(node.mark for node in nodes.values())


def test_only_one_archive_counts(cluster: Cluster, tmp_path: Path) -> None:
    """A second one is refused until it replaces the first; then the first one is refused."""
    nodes, one, two = cluster[0], tmp_path / "one", tmp_path / "two"
    archive(PlainEngine(), settings(cluster, one))
    first = ArchiveDir(one).newest().id
    asked = settings(cluster, two)
    found = archive(PlainEngine(), replace(asked, silent=True))
    assert found.verdict is Verdict.FINE and "told" not in found.tables
    words = ["spark", "archive", "--servers", cluster[1][0], "--to", str(two)]
    assert main([*words, "--no-tell"], PLAIN) == 0 and main(words, PLAIN) == 2
    found = archive(PlainEngine(), asked)
    assert found.verdict is Verdict.UNDECIDED and found.fields["id"] != first
    assert all("another archive counts" in str(row[2]) for row in found.tables["told"].rows)
    assert {node.archive for node in nodes.values()} == {first}
    for _ in range(2):
        assert archive(PlainEngine(), replace(asked, replace=True)).verdict is Verdict.FINE
        assert {node.archive for node in nodes.values()} == {ArchiveDir(two).newest().id}
    assert archive(PlainEngine(), settings(cluster, one)).verdict is Verdict.UNDECIDED


def test_an_archive_that_went_back_is_not_called_told(cluster: Cluster, tmp_path: Path) -> None:
    """Its directory was brought back from a copy: the nodes were told of more, and let it go."""
    nodes, to = cluster[0], tmp_path / "archive"
    whole = sealed(cluster)
    for node in nodes.values():
        node.confirm = 2 * SEGMENT
    archive(PlainEngine(), settings(cluster, to))
    for node in nodes.values():
        node.confirm = whole
    assert archive(PlainEngine(), settings(cluster, to)).verdict is Verdict.FINE
    ArchiveDir(to).path_of(2).unlink()
    for node in nodes.values():
        assert node.mark == whole
        node.start = whole
    held = ArchiveDir(to).stored()
    found = archive(PlainEngine(), replace(settings(cluster, to), orphans_after=-1.0))
    assert found.verdict is Verdict.DAMAGED
    assert ArchiveDir(to).stored() == held, "nothing that a lost manifest named is an orphan"
    words = f"was notified of offsets up to {whole}, the archive now ends at {2 * SEGMENT}"
    assert {row[2] for row in found.tables["told"].rows} == {words}


def test_what_another_run_told_meanwhile_is_no_loss(cluster: Cluster, tmp_path: Path) -> None:
    """A run that knows an older manifest looks at the newest one before it says so."""
    nodes, to = cluster[0], tmp_path / "archive"
    archive(PlainEngine(), settings(cluster, to))
    now = ArchiveDir(to).newest()
    older = replace(now, segments=now.segments[:2])
    told = notify_nodes.notify(
        cluster[1], "g1", older, lambda some, above: some, ArchiveDir(to).newest
    )
    assert {(one.archived, one.state, one.differs) for one in told} == {
        (sealed(cluster), "told", False)
    }
    assert {node.mark for node in nodes.values()} == {sealed(cluster)}


def test_what_replaces_an_archive_is_read_from_the_start(cluster: Cluster, tmp_path: Path) -> None:
    """The marks of the first archive prove nothing of the second one's files."""
    nodes, one, two = cluster[0], tmp_path / "one", tmp_path / "two"
    archive(PlainEngine(), settings(cluster, one))
    archive(PlainEngine(), replace(settings(cluster, two), silent=True))
    path = two / ArchiveDir(two).newest().segments[1].data[0].path
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    found = archive(PlainEngine(), replace(settings(cluster, two), replace=True))
    assert found.verdict is Verdict.DAMAGED
    assert {node.mark for node in nodes.values()} == {SEGMENT}


def test_a_node_that_holds_other_bytes_is_damage(cluster: Cluster, tmp_path: Path) -> None:
    """It takes nothing from there on; the report says so with exit 65."""
    nodes, to = cluster[0], tmp_path / "archive"
    nodes["n1"].log[SEGMENT + 200] ^= 1
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.verdict is Verdict.DAMAGED
    assert nodes["n1"].mark == SEGMENT and nodes["n2"].mark == sealed(cluster)


def test_a_directory_is_archived_and_its_cluster_told(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--path with --tell, as a slave's machine does it; the command line's report has both."""
    nodes, to = cluster[0], tmp_path / "archive"
    made = log()
    made.write(tmp_path / "s", confirm=made.end)
    words = ["spark", "archive", "--path", str(tmp_path / "s"), "--to", str(to), "-o", "json"]
    assert main([*words, "--tell", cluster[1][0]], PLAIN) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["node"]: row["archived"] for row in report["told"]} == dict.fromkeys(
        nodes, report["covered_end"]
    )
    assert main([*words, "--group", "g2", "--tell", cluster[1][0]], PLAIN) == 0
    report = json.loads(capsys.readouterr().out)
    assert "belongs to the group g1" in report["told"][0]["state"]


def test_an_archive_counts_though_nobody_is_there_to_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed is in the report; who did not answer is a row of it, no error."""
    monkeypatch.setattr("twinlog.session.session.BACKOFF_FIRST", 3600.0)
    monkeypatch.setattr("twinlog.session.session.BACKOFF_MAX", 3600.0)
    made = log()
    made.write(tmp_path / "s", confirm=made.end)
    gone = ("127.0.0.1:1",)
    found = archive(PlainEngine(), ArchiveSettings(tmp_path / "s", tmp_path / "a", notify=gone))
    assert found.fields["manifest"] == 1 and found.fields["segments_added"]
    (row,) = found.tables["told"].rows
    assert row[:2] == ("127.0.0.1:1", None) and "no node of 127.0.0.1:1 answered" in str(row[2])


def test_wrong_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both origins, a told cluster that is read, no target."""
    words = ["spark", "archive", "--to", str(tmp_path)]
    assert main([*words, "--path", "x", "--servers", "127.0.0.1:1"], PLAIN) == 64
    assert main([*words, "--servers", "127.0.0.1:1", "--tell", "127.0.0.1:1"], PLAIN) == 64
    assert main([*words, "--path", "x", "--tell", "127.0.0.1:1", "--no-tell"], PLAIN) == 64
    assert main(["spark", "archive", "--servers", "127.0.0.1:1"], PLAIN) == 64
    assert "nothing says where the archive is" in capsys.readouterr().err


# ── faults ──────────────────────────────────────────────────────────────────────────────────────


def test_a_slave_that_goes_in_the_middle(cluster: Cluster, tmp_path: Path) -> None:
    """The others go on where it was, in the middle of a file; in the end the master alone."""
    nodes, to = cluster[0], tmp_path / "archive"

    def leave(name: str) -> Callable[[int], None]:
        def before(offset: int) -> None:
            nodes[name].gone = offset % SEGMENT != 0

        return before

    for name in ("n2", "n3"):
        nodes[name].before = leave(name)
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.fields["covered_end"] == sealed(cluster)
    assert nodes["n1"].asked[0] % SEGMENT == 3000
    assert restore(PlainEngine(), RestoreSettings(to, None, check=True)).verdict is Verdict.FINE


def test_a_slave_with_damage_is_passed_over(cluster: Cluster, tmp_path: Path) -> None:
    """Its bytes do not match its own index: the file is taken from another node, whole."""
    nodes, to = cluster[0], tmp_path / "archive"
    for name in ("n2", "n3"):
        nodes[name].log[SEGMENT + 200] ^= 1
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.fields["covered_end"] == sealed(cluster)
    assert set(nodes["n1"].asked) == {SEGMENT, SEGMENT + 3000}
    nodes["n1"].log[200] ^= 1
    nodes["n2"].log[200] ^= 1
    nodes["n3"].log[200] ^= 1
    with pytest.raises(CorruptionError, match="does not match its CRC, on every node"):
        archive(PlainEngine(), settings(cluster, tmp_path / "other"))
    assert ArchiveDir(tmp_path / "other").newest() == Manifest()
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]


def test_a_lagging_slave_is_passed_over(cluster: Cluster, tmp_path: Path) -> None:
    """What one node has confirmed is sealed, though a slave has not heard of it."""
    nodes, to = cluster[0], tmp_path / "archive"
    nodes["n2"].confirm = SEGMENT // 2
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.fields["covered_end"] == sealed(cluster)
    assert all(at < SEGMENT // 2 for at in nodes["n2"].asked)


def test_retention_that_is_quicker(cluster: Cluster, tmp_path: Path) -> None:
    """A file gone everywhere between plan and read ends the run without a trace; the next one
    takes what is left, and the gap is in the report. One kept by a single node is still taken."""
    nodes, to = cluster[0], tmp_path / "archive"
    for name in ("n1", "n2"):
        nodes[name].start = 2 * SEGMENT
    nodes["n3"].start = SEGMENT

    def drop(offset: int) -> None:
        if offset == SEGMENT:
            nodes["n3"].start = 2 * SEGMENT

    nodes["n3"].before = drop
    with pytest.raises(SourceUnavailable, match=f"n3 keeps the log from {2 * SEGMENT} on"):
        archive(PlainEngine(), settings(cluster, to))
    assert not [path for path in to.rglob("*") if path.is_file()]
    nodes["n3"].before = lambda offset: None
    found = archive(PlainEngine(), settings(cluster, to))
    assert found.fields["covered_start"] == 2 * SEGMENT
    assert nodes["n1"].mark == sealed(cluster), "what is gone needs no proof"


def test_two_archivers_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Both read the nodes; one commits, the other sees it: no segment twice."""
    to = tmp_path / "archive"

    race = Racing(lambda: archive(PlainEngine(), settings(cluster, to)))
    found = archive(race, settings(cluster, to))
    assert (found.fields["segments_added"], found.fields["manifest"]) == (0, 1)
    bases = [segment.base for segment in ArchiveDir(to).newest().segments]
    assert bases == list(range(0, sealed(cluster), SEGMENT))


def test_young_segments_stay(cluster: Cluster, tmp_path: Path) -> None:
    """The first batch behind a segment tells how old it is at least; without one it is young."""
    nodes = cluster[0]
    young = ArchiveSettings(None, tmp_path / "a", servers=cluster[1], older_than=10 * 365 * 86400.0)
    assert archive(PlainEngine(), young).fields["segments_added"] == 0
    for node in nodes.values():
        node.confirm = 2 * SEGMENT
    old = ArchiveSettings(None, tmp_path / "b", servers=cluster[1], older_than=60.0)
    assert archive(PlainEngine(), old).fields["covered_end"] == SEGMENT


# ── the schedule ────────────────────────────────────────────────────────────────────────────────


def test_follow_goes_by_the_cluster_file(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """archive.every and archive.to of the file; a cluster out of reach is tried again later;
    Ctrl-C ends it with 130."""
    path, pauses = tmp_path / "cluster.toml", list[float]()
    path.write_text(
        '[cluster]\nname = "demo"\n[archive]\nevery = "7 min"\nto = "cold"\n'
        '[[node]]\nname = "n1"\naddress = "127.0.0.1"\n'
    )
    real, failures = job.archive, [TwinlogError]

    def sometimes(*given: object) -> object:
        if failures:
            failures.pop()
            raise SourceUnavailable("no node answered")
        return real(*given)  # type: ignore[arg-type]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(job, "archive", sometimes)
    monkeypatch.setattr("cli.spark.archive.time", SimpleNamespace(sleep=sleep))
    words = ["-c", str(path), "spark", "archive", "--servers", ",".join(cluster[1]), "--follow"]
    assert main(words, PLAIN) == 130
    assert pauses == [420.0] * 3
    assert ArchiveDir(tmp_path / "cold").newest().number == 1


def test_follow_without_a_pause_is_refused(tmp_path: Path) -> None:
    """It would keep a machine busy for nothing."""
    words = ["spark", "archive", "--servers", "127.0.0.1:1", "--to", str(tmp_path / "archive")]
    assert main([*words, "--follow", "--every", "0 s"], PLAIN) == 64


def test_follow_ends_with_the_first_run_that_finds_damage(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with other bytes is exit 65 with --follow too, after the runs that were fine."""
    nodes, pauses = cluster[0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) >= 2:
            raise KeyboardInterrupt
        nodes["n1"].log[SEGMENT + 200] ^= 1
        nodes["n1"].mark = 0

    monkeypatch.setattr("cli.spark.archive.time", SimpleNamespace(sleep=sleep))
    words = ["spark", "archive", "--servers", ",".join(cluster[1]), "--to", str(tmp_path / "a")]
    assert main([*words, "--follow", "--every", "1m"], PLAIN) == 65
    assert pauses == [60.0]
