"""Reports over an archive, alone and in front of a live store, without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.app import main
from tests.fakes.node import FakeCluster
from tests.stores.archives import half_archived
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.errors import DataLossError
from twinlog.spark.jobs.reports import archived, tables
from twinlog.spark.jobs.reports.queries import QUERIES
from twinlog.spark.jobs.reports.tables import ReportSource
from twinlog.store.reader import StoreReader

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole store, its archive, and what retention left of the store."""
    made = tmp_path_factory.mktemp("reports")
    half_archived(made)
    return made


def both(home: Path) -> ReportSource:
    """What is left of the store with its archive."""
    return ReportSource(home / "live", archive=home / "archive")


def test_archive_and_live_are_the_whole_store(home: Path) -> None:
    """Every record once, in log order, and the same facts; so every report is the same."""
    whole = ReportSource(home / "whole")
    assert list(tables.records_of(both(home))) == list(tables.records_of(whole))
    assert len(list(tables.records_of(ReportSource(home / "live")))) < 60
    for topic in ("", "t1"):
        one = ReportSource(home / "whole", topic=topic)
        two = ReportSource(home / "live", topic=topic, archive=home / "archive")
        facts = tables.facts_of(one, now=1, key="k3")
        assert tables.facts_of(two, now=1, key="k3") == facts
        for query in QUERIES.values() if not topic else [QUERIES["delivery"]]:
            wanted = tables.report_on(None, query, one, facts).tables["rows"]
            assert tables.report_on(None, query, two, facts).tables["rows"] == wanted, query.name


def test_an_archive_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the records of its segments, their queues, and the epochs that wrote them."""
    end = ArchiveDir(home / "archive").newest().segments[-1].end
    below = [r for r in tables.records_of(ReportSource(home / "whole")) if r.log_offset < end]
    alone = ReportSource(archive=home / "archive")
    assert list(tables.records_of(alone)) == below
    facts = tables.facts_of(alone)
    assert facts.epochs == [
        one for one in tables.facts_of(ReportSource(home / "whole")).epochs if one[1] < end
    ]
    ends = {(r.topic, r.queue): r.queue_offset + 1 for r in below}
    assert facts.queues == {key: (0, stop) for key, stop in ends.items()}
    words = ["--archive", str(home / "archive"), "-o", "json"]
    assert main(["spark", "stats", "failovers", *words], PLAIN) == 0
    assert sum(row["records"] for row in json.loads(capsys.readouterr().out)["rows"])
    assert main(["spark", "trace", "ID1-5", *words], PLAIN) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["ID1-5"]
    assert main(["spark", "timeline", *words], PLAIN) == 0


def test_a_cluster_and_its_archive(home: Path) -> None:
    """Queues begin where the archive has them from and end where the nodes say; epochs of both."""
    wanted = tables.facts_of(ReportSource(home / "whole"))
    made = FakeCluster(epochs=[[2, dict(wanted.epochs)[2]]], topics={"t0": 2})
    with StoreReader(home / "whole") as store:
        for record in store.records():
            if record.topic == "t0":
                data = bytes(store.series.read(record.log_offset, record.size))
                made.queues.setdefault((record.topic, record.queue), []).append(data)
        made.end = store.end
    made.starts = dict.fromkeys(made.queues, 5)
    made.add_node("n1")
    try:
        servers = f"127.0.0.1:{made.nodes['n1'].port}"
        one = ReportSource(servers=servers, archive=home / "archive")
        assert tables.facts_of(one).queues == {}, "nobody asked"
        found = tables.facts_of(one, asked=True)
        live = tables.facts_of(ReportSource(servers=servers), asked=True)
    finally:
        made.close()
    ours = {key: span for key, span in wanted.queues.items() if key[0] == "t0"}
    assert found.queues == ours and found.epochs == wanted.epochs
    assert live.queues == {key: (5, stop) for key, (_, stop) in ours.items()}


def test_a_trace_scans_what_no_index_knows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The key index ends where the live store begins; with an archive all is read."""
    words = ["spark", "trace", "k0", "--path", str(home / "live"), "-o", "json"]
    assert main([*words, "--archive", str(home / "archive")], PLAIN) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2 * 6


def test_the_view_of_segments(home: Path) -> None:
    """As the manifest has them; each row has a value for each column."""
    held = ArchiveDir(home / "archive").newest().segments
    rows = archived.segments(home / "archive")
    assert [row[1:5] for row in rows] == [
        (one.base, one.end, one.end - one.base, one.records) for one in held
    ]
    assert {len(row) for row in rows} == {len(archived.SEGMENT_VIEW.split(","))}


def test_what_is_gone_is_told(home: Path, tmp_path: Path) -> None:
    """A file that is gone or is not what was written; a stretch that neither has."""
    copy = tmp_path / "archive"
    shutil.copytree(home / "archive", copy)
    file = copy / ArchiveDir(copy).newest().segments[0].data[0].path
    data = file.read_bytes()
    file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(DataLossError, match="not what was written"):
        list(tables.records_of(ReportSource(archive=copy)))
    file.unlink()
    with pytest.raises(DataLossError, match="it is gone"):
        list(tables.records_of(ReportSource(archive=copy)))
    held = ArchiveDir(home / "archive").newest().segments
    with pytest.raises(DataLossError, match="neither the archive nor"):
        list(archived.records(home / "archive", None, held[-1].end + 1))
    holed = [one for one in held if one.base != held[1].base]
    manifest = ArchiveDir(copy).path_of(1)
    manifest.write_text(Manifest(number=1, segments=holed[1:] + holed[:1]).text())
    shutil.copytree(home / "archive" / "data", copy / "data", dirs_exist_ok=True)
    with pytest.raises(DataLossError, match=f"missing from {held[0].end} to {held[1].end}"):
        list(tables.records_of(ReportSource(archive=copy)))


def test_nothing_live(home: Path, tmp_path: Path) -> None:
    """A store that holds nothing takes nothing away from its archive."""
    shutil.copytree(home / "live", tmp_path / "live")
    for folder in ("commitlog", "twinlog/batches"):
        for path in (tmp_path / "live" / folder).iterdir():
            path.unlink()
    found = tables.records_of(ReportSource(tmp_path / "live", archive=home / "archive"))
    assert list(found) == list(tables.records_of(ReportSource(archive=home / "archive")))


def test_calls_with_an_archive(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None, or no such topic: 66; two live stores: 64; a cluster is read by Spark alone."""
    live, archive = str(home / "live"), str(home / "archive")
    for words, code, text in (
        (["--archive", live], 66, "no archive"),
        (["--archive", f"{live}/none"], 66, "no directory"),
        (["--archive", archive, "--topic", "none"], 66, "there is no topic none"),
        (["--archive", archive, "--path", live, "--servers", "n1:1"], 64, "both are named"),
        (["--archive", archive, "--servers", "n1:1"], 64, "only directories and archives"),
    ):
        assert main(["spark", "stats", "rates", *words], PLAIN) == code, words
        assert text in capsys.readouterr().err
