"""Offsets, limits and cuts of a stream over a directory that grows, is trimmed or made again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.stores.sample import Ours, sample
from twinlog.format.log_file import file_name
from twinlog.spark.errors import DataLossError, SourceError, SourceUnavailable
from twinlog.spark.plan.stream import Limit, Stream
from twinlog.spark.source.stream_directory import DirectoryStream, DirectoryView
from twinlog.spark.source.stream_query import Places

ALL = Limit()


def stream_of(root: Path, **options: str) -> DirectoryStream:
    """A query that looks at the directory each time it is asked."""
    made = DirectoryStream.make({"path": str(root), **options})
    look = made.views

    def anew(read: Places) -> list[DirectoryView]:
        made.close()
        return look(read)

    made.views = made.stream._views = anew  # type: ignore[method-assign]
    return made


def rows(made: DirectoryStream, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    from twinlog.spark.source.batch import read_task

    return [
        (row["topic"], row["queue_id"], row["queue_offset"])
        for task in made.tasks(start, end)
        for batch in read_task(task)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


def text(offset: dict[str, Any]) -> str:
    """What Spark's checkpoint would hold."""
    return json.dumps(offset)


def everything(ours: Ours) -> list[Any]:
    return sorted(
        (topic, queue, number)
        for (topic, queue), held in ours.queues.items()
        if not topic.startswith("rmq_sys_")
        for number in range(len(held) // 20)
    )


def drained(made: DirectoryStream, limit: Limit) -> list[list[Any]]:
    """The batches of a stream from its initial offset until nothing is left."""
    at, found = made.stream.initial(), list[list[Any]]()
    while (end := made.stream.latest(at, limit)) != at:
        found.append(rows(made, at, json.loads(text(end))))
        at = json.loads(text(end))
    return found


def test_a_moving_start_loses_nothing_across_a_restart_in_batch_0(tmp_path: Path) -> None:
    """Spark asks for the initial offset again, and after a restart it would be another one."""
    ours = sample()
    root = ours.write(tmp_path)
    first = stream_of(root, startingOffsets="latest")
    start = first.stream.initial()
    ours.batch(b"in between", b"too")
    ours.write(tmp_path)
    end = first.stream.latest(start, ALL)
    assert first.stream.initial() == start
    assert len(rows(first, first.stream.initial(), end)) == 2
    ours.batch(b"after the crash")
    ours.write(tmp_path)
    again = stream_of(root, startingOffsets="latest")
    restarted = again.stream.initial()
    assert restarted != start
    assert rows(again, restarted, json.loads(text(end))) == rows(first, start, end)
    later = again.stream.latest(json.loads(text(end)), ALL)
    assert "from" not in later
    assert len(rows(again, json.loads(text(end)), later)) == 1


def test_nothing_new_is_the_start_itself(tmp_path: Path) -> None:
    """Spark compares the text: whatever changes without rows starts empty batches for ever."""
    root = sample().write(tmp_path)
    made = stream_of(root, startingOffsets="earliest")
    end = made.stream.latest(made.stream.initial(), ALL)
    loaded = json.loads(text(end))
    assert text(made.stream.latest(loaded, ALL)) == text(end)
    again = stream_of(root, startingOffsets="earliest")
    assert text(again.stream.latest(again.stream.initial(), ALL)) == text(end)


@pytest.mark.parametrize("limit", [Limit(rows=1), Limit(rows=7), Limit(size=1500), Limit(size=1)])
def test_batches_tile_the_queues_and_keep_their_limit(tmp_path: Path, limit: Limit) -> None:
    """Every row once; each batch one stretch of the log."""
    ours = sample()
    made = stream_of(ours.write(tmp_path), startingOffsets="earliest")
    found = drained(made, limit)
    assert sorted(row for batch in found for row in batch) == everything(ours)
    if limit.rows:
        assert all(1 <= len(batch) <= limit.rows for batch in found)
        assert len(found) <= 2 * len(everything(ours)) // limit.rows + 1
    places = [max(made.views({})[0].queues[t, q].place(n) for t, q, n in batch) for batch in found]
    assert places == sorted(places), "a later batch never begins before an earlier one ends"


def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    ours = sample()
    made = stream_of(ours.write(tmp_path), startingOffsets="earliest")
    before = everything(ours)
    made.stream.available_now()
    start = made.stream.initial()
    ours.batch(b"too late")
    ours.write(tmp_path)
    end = made.stream.latest(start, ALL)
    assert sorted(rows(made, start, end)) == before
    assert made.stream.latest(end, ALL) == end


def test_few_rows_wait_for_more_but_not_for_ever(tmp_path: Path) -> None:
    ours = sample()
    root = ours.write(tmp_path)
    made = stream_of(
        root, startingOffsets="latest", minOffsetsPerTrigger="3", maxTriggerDelay="10 s"
    )
    clock = [0.0]
    made.stream._now = lambda: clock[0]
    start = made.stream.initial()
    ours.batch(b"one")
    ours.write(tmp_path)
    assert made.stream.latest(start, ALL) == start
    clock[0] = 9.9
    assert made.stream.latest(start, ALL) == start
    clock[0] = 10.0
    end = made.stream.latest(start, ALL)
    assert len(rows(made, start, end)) == 1
    ours.batch(b"two", b"three", b"four")
    ours.write(tmp_path)
    assert made.stream.latest(end, ALL) != end, "enough rows do not wait"


def test_new_queues_begin_at_their_start(tmp_path: Path) -> None:
    ours = sample()
    made = stream_of(ours.write(tmp_path), startingOffsets="earliest")
    at = made.stream.latest(made.stream.initial(), ALL)
    ours.batch(b"first", b"second", topic="fresh")
    ours.write(tmp_path)
    end = made.stream.latest(at, ALL)
    assert rows(made, at, end) == [("fresh", 0, 0), ("fresh", 0, 1)]


def test_a_vanished_queue_is_a_loss_unless_it_was_dropped(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    made = stream_of(root, startingOffsets="earliest")
    at = made.stream.latest(made.stream.initial(), ALL)
    shutil.rmtree(root / "consumequeue" / "t" / "0")
    with pytest.raises(DataLossError, match="topic t, queue 0 is not there any more"):
        made.stream.latest(at, ALL)
    lax = stream_of(root, startingOffsets="earliest", failOnDataLoss="false")
    assert lax.stream.latest(at, ALL) == at
    dropped = stream_of(root, assign='{"t":[1]}')
    assert dropped.stream.latest(at, ALL) == at


def test_what_the_options_no_longer_mean_is_not_missed(tmp_path: Path) -> None:
    """A pattern that leaves a topic out now, system topics that were read before: no loss."""
    ours = Ours()
    for topic in ("orders", "bills", "%RETRY%group"):
        ours.batch(b"x", topic=topic)
    root = ours.write(tmp_path)
    made = stream_of(root, startingOffsets="earliest", subscribePattern="orders|bills|%RETRY%.*")
    at = made.stream.latest(made.stream.initial(), ALL)
    for options in ({"subscribePattern": "orders"}, {}):
        ours.batch(b"y", topic="orders")
        ours.write(tmp_path)
        less = stream_of(root, **options)
        end = less.stream.latest(at, ALL)
        assert rows(less, at, end)[0] == ("orders", 0, 1)
        held = end["groups"][str(root)]["queues"]
        assert "%RETRY%group" not in held and "orders" in held
    shutil.rmtree(root / "consumequeue" / "bills")
    with pytest.raises(DataLossError, match="topic bills, queue 0 is not there any more"):
        made.stream.latest(at, ALL)


def trimmed(root: Path) -> None:
    """Retention: the oldest file of the log and of the batch index goes."""
    (root / "commitlog" / file_name(0)).unlink()
    (root / "twinlog" / "batches" / file_name(0)).unlink()


def test_retention_that_overtakes_the_reader_is_named(tmp_path: Path) -> None:
    ours = sample()
    root = ours.write(tmp_path)
    made = stream_of(root, startingOffsets="earliest")
    at = made.stream.initial()
    trimmed(root)
    kept = made.views({})[0].queues["t", 0].start
    assert kept > 0
    lost = f"rows 0–{kept - 1} are gone"
    with pytest.raises(DataLossError) as refused:
        made.stream.latest(at, ALL)
    assert str(refused.value) == (
        f"twinlog: topic t, queue 0: {lost} (first kept {kept}); "
        "start at earliest, read the archive, or set failOnDataLoss=false"
    )
    warned: list[str] = []
    lax = stream_of(root, startingOffsets="earliest", failOnDataLoss="false")
    lax.stream._warn = warned.append
    end = lax.stream.latest(at, ALL)
    assert len([text for text in warned if lost in text]) == 1
    found = rows(lax, at, end)
    assert sorted(found) == [row for row in everything(ours) if row[2] >= _kept(lax, row)]


def _kept(made: DirectoryStream, row: Any) -> int:
    return made.views({})[0].queues[row[0], row[1]].start


def test_history_cut_below_the_checkpoint_is_named(tmp_path: Path) -> None:
    """An unclean election: the new epoch begins before what was delivered."""
    lost, kept = Ours(), Ours()
    for ours in (lost, kept):
        for number in range(4):
            ours.batch(bytes([65 + number]) * 200)
    for number in range(4):
        lost.batch(bytes([97 + number]) * 200)
    root = lost.write(tmp_path)
    made = stream_of(root, startingOffsets="earliest")
    at = made.stream.latest(made.stream.initial(), ALL)
    kept.open_epoch(2)
    for number in range(9):
        kept.batch(bytes([97 + number]) * 200)
    shutil.rmtree(root)
    kept.write(tmp_path)
    with pytest.raises(DataLossError) as refused:
        made.stream.latest(at, ALL)
    place = next(entry.start for entry in kept.entries if entry.epoch == 2)
    assert str(refused.value) == (
        f"twinlog: topic t, queue 0: the history of epoch 1 was cut at log offset {place} by an "
        "unclean election: 4 rows from 4 on that were delivered exist no longer; "
        "use another checkpointLocation, or set failOnDataLoss=false"
    )
    lax = stream_of(root, startingOffsets="earliest", failOnDataLoss="false")
    warned: list[str] = []
    lax.stream._warn = warned.append
    end = lax.stream.latest(at, ALL)
    assert end["groups"][str(root)]["epoch"] == 2
    assert len(warned) == 1
    assert rows(lax, at, end) == [("t", 0, number) for number in range(4, 13)]
    assert lax.stream.latest(json.loads(text(end)), ALL) == end, "a cut counts once"


def test_an_ordinary_failover_is_no_loss(tmp_path: Path) -> None:
    ours = Ours()
    ours.batch(b"one", b"two")
    root = ours.write(tmp_path)
    made = stream_of(root, startingOffsets="earliest")
    at = made.stream.latest(made.stream.initial(), ALL)
    ours.open_epoch(2)
    ours.batch(b"three")
    ours.write(tmp_path)
    end = made.stream.latest(at, ALL)
    assert rows(made, at, end) == [("t", 0, 2)]
    assert (at["groups"][str(root)]["epoch"], end["groups"][str(root)]["epoch"]) == (1, 2)


def test_a_cut_that_is_read_on_in_small_batches(tmp_path: Path) -> None:
    """The rows of the new history come once, whatever the limit."""
    lost, kept = Ours(), Ours()
    for ours in (lost, kept):
        for number in range(4):
            ours.batch(b"%d" % number * 100, queue=number % 2)
    for number in range(6):
        lost.batch(b"%d" % number * 100, queue=number % 2)
    root = lost.write(tmp_path)
    made = stream_of(root, failOnDataLoss="false", startingOffsets="earliest")
    at = made.stream.latest(made.stream.initial(), ALL)
    kept.open_epoch(2)
    for number in range(12):
        kept.batch(b"%d" % number * 100, queue=number % 2)
    shutil.rmtree(root)
    kept.write(tmp_path)
    found: list[Any] = []
    while (end := made.stream.latest(at, Limit(rows=1))) != at:
        found += rows(made, at, json.loads(text(end)))
        at = json.loads(text(end))
    assert sorted(found) == [("t", queue, number) for queue in (0, 1) for number in range(2, 8)]


def remade(root: Path, *, rows: int) -> None:
    """The topic is made again in a log that goes on."""
    fresh = Ours()
    for number in range(20):
        fresh.batch(b"other" * 60, topic="other")
        if number >= 20 - rows:
            fresh.batch(b"anew")
    shutil.rmtree(root)
    fresh.write(root)


def test_a_queue_that_ends_below_the_checkpoint(tmp_path: Path) -> None:
    """The topic was made again: what is there now is not what was read."""
    ours = Ours()
    for _ in range(8):
        ours.batch(b"old")
    root = ours.write(tmp_path / "store")
    made = stream_of(root, startingOffsets="earliest", subscribe="t")
    at = made.stream.latest(made.stream.initial(), ALL)
    remade(root, rows=3)
    with pytest.raises(DataLossError, match=r"at 3, below the checkpoint's 8: .* created again"):
        made.stream.latest(at, ALL)
    lax = stream_of(root, subscribe="t", failOnDataLoss="false")
    end = lax.stream.latest(at, ALL)
    assert rows(lax, at, json.loads(text(end))) == [("t", 0, number) for number in range(3)]


@pytest.mark.parametrize("rows_now", [8, 11])
def test_a_topic_of_rocketmq_that_was_made_again_and_is_as_long(
    tmp_path: Path, rows_now: int
) -> None:
    """Its rows lie behind what was read: none of them is taken for one of those."""

    def rocket(root: Path) -> None:
        shutil.rmtree(root / "twinlog")

    ours = Ours()
    for _ in range(8):
        ours.batch(b"old")
    root = ours.write(tmp_path / "store")
    rocket(root)
    made = stream_of(root, startingOffsets="earliest", subscribe="t")
    start = made.stream.initial()
    at = made.stream.latest(start, ALL)
    assert made.stream.latest(at, ALL) == at
    remade(root, rows=rows_now)
    rocket(root)
    with pytest.raises(DataLossError, match=r"created again: it holds other rows than the 8 that"):
        made.stream.latest(at, ALL)
    with pytest.raises(DataLossError, match=r"created again: rows of a started batch"):
        made.tasks(start, at)
    lax = stream_of(root, subscribe="t", failOnDataLoss="false")
    end = lax.stream.latest(at, ALL)
    wanted = [("t", 0, number) for number in range(rows_now)]
    assert rows(lax, at, json.loads(text(end))) == wanted
    assert lax.stream.latest(end, ALL) == end


def test_a_store_that_ends_below_the_checkpoint_is_late(tmp_path: Path) -> None:
    """Nothing is lost while its history shows no cut: it is waited for, then refused."""
    ours, less = Ours(), Ours()
    for number in range(8):
        for one in (ours, less)[: 2 if number < 5 else 1]:
            one.batch(b"row" * 10)
    root = ours.write(tmp_path / "store")
    made = stream_of(root, startingOffsets="earliest")
    start = made.stream.initial()
    end = made.stream.latest(start, ALL)
    shutil.rmtree(root)
    less.write(root)
    for fail in ("true", "false"):
        late = stream_of(root, startingOffsets="earliest", maxStaleness="0", failOnDataLoss=fail)
        with pytest.raises(SourceUnavailable, match=r"ends at log offset \d+, below the \d+ that"):
            late.tasks(start, end)
        with pytest.raises(SourceUnavailable) as refused:
            late.stream.latest(end, ALL)
        assert refused.value.code == "offset-not-available"
    waits = stream_of(root, startingOffsets="earliest", maxStaleness="20 s")
    looks: list[int] = []
    look = waits.look

    def grows(read: Places) -> list[DirectoryView]:
        looks.append(1)
        ours.write(root)
        return look(read)

    waits.look = grows  # type: ignore[method-assign]
    assert len(rows(waits, start, end)) == 8
    assert looks


def test_a_batch_whose_history_was_cut_after_it_was_planned(tmp_path: Path) -> None:
    """A replay would bring other rows under the same name: never without a word."""
    lost, kept = Ours(), Ours()
    for number in range(8):
        for ours in (lost, kept)[: 2 if number < 4 else 1]:
            ours.batch(b"row" * 10)
    root = lost.write(tmp_path / "store")
    made = stream_of(root, startingOffsets="earliest")
    start = made.stream.initial()
    end = made.stream.latest(start, ALL)
    kept.open_epoch(2)
    for _ in range(9):
        kept.batch(b"other" * 10)
    shutil.rmtree(root)
    kept.write(root)
    with pytest.raises(DataLossError, match="4 rows of a started batch have changed"):
        made.tasks(start, end)
    warned: list[str] = []
    lax = stream_of(root, startingOffsets="earliest", failOnDataLoss="false")
    lax.stream._warn = warned.append
    assert len(rows(lax, start, end)) == 8
    assert len(warned) == 1


def test_a_batch_whose_topic_was_made_again_after_it_was_planned(tmp_path: Path) -> None:
    ours = Ours()
    for _ in range(8):
        ours.batch(b"old")
    root = ours.write(tmp_path / "store")
    made = stream_of(root, startingOffsets="earliest", subscribe="t")
    start = made.stream.initial()
    end = made.stream.latest(start, ALL)
    remade(root, rows=3)
    with pytest.raises(DataLossError, match="ends at 3: 5 rows of a started batch no longer exist"):
        made.tasks(start, end)
    lax = stream_of(root, subscribe="t", failOnDataLoss="false")
    assert len(rows(lax, start, end)) == 3


def test_a_replay_is_cut_as_the_batch_was(tmp_path: Path) -> None:
    """Whatever the options are by then: tasks are part of a sink's identity."""
    root = sample().write(tmp_path)
    made = stream_of(root, startingOffsets="earliest", splitBytes="1 KiB")
    start = made.stream.initial()
    end = json.loads(text(made.stream.latest(start, ALL)))
    splits = [task.split for task in made.tasks(start, end)]
    again = stream_of(root, startingOffsets="latest", splitBytes="1 MiB", minPartitions="3")
    assert [task.split for task in again.tasks(again.stream.initial(), end)] == splits
    assert len(splits) > 3


def test_a_checkpoint_of_another_store_or_version(tmp_path: Path) -> None:
    made = stream_of(sample().write(tmp_path / "a"), startingOffsets="earliest")
    other = stream_of(sample().write(tmp_path / "b"), startingOffsets="earliest")
    with pytest.raises(SourceError, match="a checkpoint belongs to one cluster"):
        other.stream.latest(made.stream.initial(), ALL)
    with pytest.raises(SourceError, match="offsets of version 7"):
        other.stream.latest({"v": 7}, ALL)
    for strange in (5, {"orders": {"0": 3}}, None):
        with pytest.raises(SourceError, match="holds offsets of another source"):
            other.stream.latest(strange, ALL)  # type: ignore[arg-type]
        with pytest.raises(SourceError, match="holds offsets of another source"):
            other.tasks(other.stream.initial(), strange)  # type: ignore[arg-type]
    beyond = stream_of(tmp_path / "a", startingOffsets='{"t":{"0":19}}')
    with pytest.raises(SourceError, match="topic t, queue 0 ends at 18, before 19"):
        beyond.stream.initial()


def test_the_end_for_the_progress(tmp_path: Path) -> None:
    ours = sample()
    made = stream_of(ours.write(tmp_path), startingOffsets="earliest")
    assert isinstance(made.stream, Stream)
    newest = made.stream.newest()["groups"][str(tmp_path)]["queues"]
    assert (
        newest == made.stream.latest(made.stream.initial(), ALL)["groups"][str(tmp_path)]["queues"]
    )
