"""replay: what is chosen, how fast it goes, what is refused. Sending is tested with the sink."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.app import main
from tests.stores.golden import unpack
from tests.stores.sample import Ours
from twinlog.errors import UsageError
from twinlog.producer.new_message import NewMessage
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.view import ArchiveView
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.jobs.replay.archive import COLUMNS, follows, sendable
from twinlog.spark.jobs.replay.memory import Memory, held, locked, same_stream, save
from twinlog.spark.jobs.replay.settings import ReplaySettings, chosen, decided
from twinlog.spark.sink.settings import Pace, Rate, parse, rate_of
from twinlog.spark.source.batch import DirectoryQuery
from twinlog.spark.source.queries import batch_query, read_any

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}
SECONDS = 30.0


def taken(rate: Rate, tasks: int, amounts: list[float]) -> float:
    """Seconds that as many tasks at once need, each on a clock of its own, by the sink's option."""
    share = parse({"servers": "n1:1", "rate": rate.over(tasks)}).rate
    assert share is not None
    clocks = [0.0] * tasks
    for number, rows in enumerate(amounts):
        own, pace = number % tasks, Pace(share.amount)
        for _ in range(round(rows)):
            clocks[own] += 0.000_02  # what sending a row costs
            clocks[own] += pace.sent(1024 if rate.size else 1, clocks[own])
        clocks[own] += pace.rest(clocks[own])
    return max(clocks)


@pytest.mark.parametrize("text", ["600", "600 KiB/s"])
@pytest.mark.parametrize("each", [9000, 4500, 90, 7])
def test_the_rate_is_kept_within_ten_per_cent(text: str, each: int) -> None:
    """Over thirty seconds, in two long tasks or in thousands of short ones."""
    amounts = [float(each)] * (18_000 // each)
    limit = 18_000 / 600
    assert limit == SECONDS
    assert abs(taken(rate_of(text), 2, amounts) - limit) <= limit / 10


def test_what_is_chosen(tmp_path: Path) -> None:
    """By store time and by key, in the source's options."""
    ours = Ours()
    for number in range(20):
        ours.batch(b"%d" % number)
    root = ours.write(tmp_path)
    first = ours.clock - 19

    def bodies(**given: object) -> list[int]:
        settings = ReplaySettings(root, "t", "n1:1", "u", **given)  # type: ignore[arg-type]
        query = DirectoryQuery.make(chosen(settings))
        return [
            int(row["body"])
            for task in query.tasks(0)
            for batch in read_any(task)
            for row in batch.to_pylist()
        ]

    every = bodies()
    assert every == list(range(20))
    since, until = bodies(since=str(ours.clock - 4)), bodies(until=str(ours.clock - 4))
    assert (since, until) == (every[-5:], every[:-5]), first
    assert bodies(keys=("none", "other")) == []
    assert bodies(tags="a || b", range="-3:") == every[-3:]


def test_an_archive_alone_and_in_front(tmp_path: Path) -> None:
    """Alone what is sealed, with the store all of it."""
    ours = Ours()
    for number in range(60):
        ours.batch(b"%d" % number + b"x" * 100)
    root, kept = ours.write(tmp_path / "s", confirm=ours.end), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, kept))

    def rows(path: Path | None) -> int:
        query = batch_query(chosen(ReplaySettings(path, "t", "n1:1", "u", archive=kept)))
        return sum(batch.num_rows for task in query.tasks(0) for batch in read_any(task))

    assert 0 < rows(None) < rows(root) == 60


def test_what_follows_an_archive(tmp_path: Path) -> None:
    """The live store goes on behind the archive's rows, or at the time that is wanted; what neither
    has is named."""
    ours, home, kept = Ours(), tmp_path / "memory", tmp_path / "archive"
    for number in range(60):
        ours.batch(b"%d" % number + b"x" * 100)
    root = ours.write(tmp_path / "s", confirm=ours.end)
    archive(PlainEngine(), ArchiveSettings(root, kept))
    settings = ReplaySettings(root, "t", "n1:1", "u", archive=kept, resume=home)
    view = ArchiveView(str(kept), None)
    (first, stop), at = view.extent(("t", 0)) or (0, 0), view.segments[-1].end
    assert (first, stop < 60) == (0, True)

    def remembered(since: int | None, following: dict[int, int]) -> dict[int, int]:
        with held(home):
            save(home, Memory("w", {"topic": "t"}, since, 1, at, following))
        return follows(settings)

    assert remembered(None, {0: stop}) == {0: stop}
    assert remembered(ours.clock - 2, {0: stop}) == {0: 57}
    assert remembered(0, {}) == {0: 0}
    with pytest.raises(SourceError, match="ends at 60, and the archive has it up to 61"):
        remembered(None, {0: 61})
    for folder in ("commitlog", "twinlog/batches"):
        for path in (root / folder).iterdir():
            if int(path.name) < at:
                path.unlink()
    assert remembered(None, {0: stop}) == {0: stop}
    with pytest.raises(DataLossError, match=f"rows 1–{stop - 1} are gone"):
        remembered(None, {0: 1})
    (home / "archive.json").write_text('{"v": 1}')
    with pytest.raises(UsageError, match="not a memory of a replay: it lacks 'parts'"):
        follows(settings)
    (home / "offsets").mkdir()
    with pytest.raises(UsageError, match="a replay without an archive"), held(home):
        pass


def test_a_directory_remembers_one_replay(tmp_path: Path) -> None:
    """Without an archive Spark's checkpoint knows what was read, not what became of it."""
    home = tmp_path / "memory"
    settings = ReplaySettings(tmp_path, "t", "n1:1", "u", since="-2h", resume=home)
    with locked(home):
        for _ in range(2):
            same_stream(home, decided(settings))
        other = replace(settings, to_topic="v")
        with pytest.raises(UsageError, match="a replay whose to-topic is 'u', not 'v'"):
            same_stream(home, decided(other))
        with pytest.raises(UsageError, match="whose keys is"):
            same_stream(home, decided(replace(settings, keys=("k",))))
        same_stream(home, decided(replace(settings, servers="n2:1")))
        with pytest.raises(UsageError, match="is running"), locked(home):
            pass
    (home / "replay.json").write_text("[]")
    with pytest.raises(UsageError, match="not a memory of a replay"):
        same_stream(home, decided(settings))


@pytest.mark.parametrize("case", ["08-lmq", "09-batch"])
def test_what_a_producer_sets_itself_is_left_behind(case: str, tmp_path: Path) -> None:
    """Records of light queues and of batch topics are sent again like others."""
    root = unpack(case, tmp_path)
    query = DirectoryQuery.make({"path": str(root), "columns": COLUMNS, "includeSystem": "true"})
    flow = ReplaySettings(root, "t", "n1:1", "u")
    made = [sendable(one, flow) for task in query.tasks(0) for one in read_any(task)]
    texts = [
        NewMessage(None, None, None, dict(pairs)).text()
        for one in made
        for pairs in one.column("properties").to_pylist()
    ]
    assert len(texts) > 100 and all(b"TL_ORIGIN" in text for text in texts)


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ([], "a replay reads a directory or a cluster", 64),
        (["--path", "{}", "--from-servers", "n1:1"], "a replay reads a directory or a cluster", 64),
        (["--path", "{}", "--rate", "fast"], '"fast" is no rate', 64),
        (["--path", "{}", "--until", "-1h", "--resume", "x"], "do not go with --resume", 64),
        (["--path", "{}", "--archive", "{}/none"], "there is no directory", 66),
        (["--path", "{}", "--keys", "{}/nothing"], "cannot be read", 66),
        (["--path", "{}", "--keys", "{}/two"], '"a b" in', 64),
        (["--path", "{}", "--keys", "{}/empty"], "names no key", 64),
    ],
)
def test_wrong_calls(
    words: list[str], said: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a session is started."""
    root = Ours()
    root.batch(b"x")
    root.write(tmp_path)
    (tmp_path / "two").write_text("fine\na b\n")
    (tmp_path / "empty").write_text("\n")
    call = [word.format(tmp_path) for word in words]
    made = main(["spark", "replay", "--topic", "t", "--to-topic", "u", "--dry-run", *call], PLAIN)
    assert (made, said in capsys.readouterr().err) == (code, True)
