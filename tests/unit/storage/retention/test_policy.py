"""The decision which file goes: age, size, disk, hours, limits, readers, slaves, an archive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.retention.policy import FILES_MAX, Facts, File, Held, Leave, Reason, Retention, Wait
from storage.settings import RetentionSettings
from twinlog.errors import UsageError

HOUR = 3_600_000
DAY = 24 * HOUR
EVERYTHING = 1 << 62
SETTINGS = RetentionSettings(keep_seconds=72 * 3600, hours=None)


def files(*ages_hours: float, now_ms: int = 100 * DAY) -> tuple[File, ...]:
    """Files of 100 bytes whose newest records are so old, oldest first."""
    return tuple(
        File(at * 100, at * 100 + 100, now_ms - int(hours * HOUR))
        for at, hours in enumerate(ages_hours)
    )


def facts(*ages_hours: float, **changes: object) -> Facts:
    """Facts about such files, with nothing in the way."""
    found = Facts(
        files(*ages_hours), limit=EVERYTHING, needed=EVERYTHING, archived=0, used=0.1,
        wall_ms=100 * DAY,
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def decide(settings: RetentionSettings, given_facts: Facts) -> tuple[Leave | None, Wait]:
    """One decision, and what stands in its way."""
    retention = Retention(settings, 0.0)
    return retention.decide(10.0, given_facts), retention.waits


@pytest.mark.parametrize(("hours", "goes"), [(71.9, False), (72, True), (500, True)])
def test_a_file_goes_by_the_age_of_its_newest_record(hours: float, goes: bool) -> None:
    """From the very moment on."""
    found, _ = decide(SETTINGS, facts(hours, 1))
    assert found == (Leave(100, Reason.AGE, overtakes=False) if goes else None)


def test_an_empty_log_has_nothing_to_lose() -> None:
    """However full the disk is."""
    assert decide(SETTINGS, facts(used=0.99)) == (None, Wait.NOTHING)


def test_the_last_file_never_goes() -> None:
    """It is the one that is written."""
    assert decide(replace(SETTINGS, keep_seconds=3600.0), facts(500)) == (None, Wait.LAST)
    assert decide(SETTINGS, facts(500, used=1.0)) == (None, Wait.LAST)


def test_without_an_age_nothing_is_too_old() -> None:
    """``keep = "none"``."""
    assert decide(replace(SETTINGS, keep_seconds=None), facts(9999, 1)) == (None, Wait.NOTHING)


@pytest.mark.parametrize(("most", "goes"), [(300, False), (299, True)])
def test_a_log_that_is_too_long_loses_its_oldest_file(most: int, goes: bool) -> None:
    """Its length is that of the log, not of the files."""
    found, _ = decide(replace(SETTINGS, keep_bytes=most), facts(3, 2, 1))
    assert (found is not None and found.reason is Reason.SIZE) is goes


def test_nothing_above_the_limit_goes_for_whatever_reason() -> None:
    """Not even on a full disk."""
    assert decide(SETTINGS, facts(500, 1, limit=99)) == (None, Wait.LIMIT)
    assert decide(SETTINGS, facts(500, 1, limit=99, used=0.99)) == (None, Wait.LIMIT)
    assert decide(SETTINGS, facts(500, 1, limit=100))[0] is not None


@pytest.mark.parametrize(
    ("hour", "used", "goes"), [(4, 0.1, True), (5, 0.1, False), (5, 0.75, True)]
)
def test_expired_files_go_at_their_hour(hour: int, used: float, goes: bool) -> None:
    """Or at any hour when the disk is fuller than disk_clean."""
    settings = replace(SETTINGS, hours=(4,))
    found, waits = decide(settings, facts(500, 1, wall_ms=100 * DAY + hour * HOUR, used=used))
    assert (found is not None, waits) == (goes, Wait.NOTHING if goes else Wait.HOUR)


@pytest.mark.parametrize(("used", "goes"), [(0.849, False), (0.85, True), (None, False)])
def test_a_disk_that_is_too_full_takes_the_oldest_at_any_age(
    used: float | None, goes: bool
) -> None:
    """Nobody knows how full: nothing goes."""
    found, _ = decide(replace(SETTINGS, hours=(4,)), facts(1, 0, used=used))
    assert found == (Leave(100, Reason.DISK, overtakes=False) if goes else None)


def test_what_a_slave_lacks_stays_until_the_disk_is_too_full() -> None:
    """Then it goes, and it is said that the slave was overtaken."""
    assert decide(SETTINGS, facts(500, 1, needed=50)) == (None, Wait.SLAVE)
    found, _ = decide(SETTINGS, facts(500, 1, needed=50, used=0.9))
    assert found == Leave(100, Reason.DISK, overtakes=True)


def test_what_an_archive_lacks_stays() -> None:
    """On a full disk too: that is what the setting is for."""
    settings = replace(SETTINGS, archive=True)
    assert decide(settings, facts(500, 1, archived=99, used=0.99)) == (None, Wait.ARCHIVE)
    assert decide(settings, facts(500, 1, archived=100))[0] is not None


@pytest.mark.parametrize("at_start", [True, False])
def test_a_clock_that_jumps_days_ahead_does_not_expire_files(at_start: bool) -> None:
    """Whether it was wrong when the node started or is set while it runs; slowly it is believed."""
    retention, now, hours = Retention(SETTINGS, 0.0), 10.0, 0.0
    found = facts(60, 40, 20, 0)
    if not at_start:
        assert retention.decide(now, found) is None
        stamped = found.wall_ms + 5 * DAY  # and what is written now has the wrong time
        found = replace(found, files=[*found.files, File(400, 500, stamped)])
    found = replace(found, wall_ms=found.wall_ms + 5 * DAY)
    while retention.decide(now + hours * 3600, found) is None:
        hours += 0.1
    assert hours > 0.5, "nothing is deleted at once"
    assert hours < 2, "12 hours are passed ten times as fast"


def test_files_go_one_at_a_time_with_pauses() -> None:
    """Ten in a row, then the disk rests."""
    settings = replace(SETTINGS, pause_seconds=0.5, look_seconds=10)
    retention = Retention(settings, 0.0)
    assert not retention.due(9.9)
    now, went = 10.0, 0
    while (leave := retention.decide(now, facts(*([500] * 30), 1))) is not None:
        went += 1
        assert leave.to == 100
        assert (retention.due(now + 0.4), retention.due(now + 0.5)) == (False, True)
        now += 0.5
    assert went == FILES_MAX
    assert retention.next_look() == now + 10
    retention.hurry(now + 1)
    assert retention.due(now + 1)
    assert retention.deleted[Reason.AGE] == FILES_MAX


def test_a_held_file_waits_for_its_reader_but_not_for_ever() -> None:
    """Forced removals are counted."""
    retention = Retention(replace(SETTINGS, hold_seconds=120), 0.0)
    left = [Held(0, 10.0, held=True), Held(100, 10.0, held=False)]
    assert retention.removable(20.0, left) == [100]
    assert retention.forced == 0
    assert retention.removable(130.0, left[:1]) == [0]
    assert retention.forced == 1


def test_writes_are_refused_from_a_level_on() -> None:
    """Ninety per cent by default."""
    retention = Retention(SETTINGS, 0.0)
    assert [retention.refuses(used) for used in (None, 0.899, 0.9)] == [False, False, True]


@pytest.mark.parametrize(
    "wrong", [{"disk_clean": 0.9, "disk_force": 0.8}, {"disk_refuse": 1.1}, {"hours": (24,)}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    """Levels rise; a day has 24 hours."""
    with pytest.raises(UsageError):
        replace(SETTINGS, **wrong)  # type: ignore[arg-type]


@given(
    ages=st.lists(st.floats(0, 1000), min_size=1, max_size=6),
    limit=st.integers(0, 700),
    needed=st.integers(0, 700),
    archived=st.integers(0, 700),
    used=st.one_of(st.none(), st.floats(0, 1)),
    archive=st.booleans(),
    keep_bytes=st.one_of(st.none(), st.integers(0, 700)),
    hour=st.integers(0, 23),
)
def test_whatever_the_facts_the_limits_hold(
    *,
    ages: list[float],
    limit: int,
    needed: int,
    archived: int,
    used: float | None,
    archive: bool,
    keep_bytes: int | None,
    hour: int,
) -> None:
    """The oldest file or none, never the last, never above the limit or the archive's mark."""
    settings = replace(SETTINGS, archive=archive, keep_bytes=keep_bytes, hours=(4,))
    given_facts = facts(
        *ages, limit=limit, needed=needed, archived=archived, used=used,
        wall_ms=100 * DAY + hour * HOUR,
    )  # fmt: skip
    found, _ = decide(settings, given_facts)
    if found is None:
        return
    assert found.to == 100 <= limit
    assert len(ages) > 1
    assert not archive or archived >= 100
    assert found.overtakes == (needed < 100)
    assert not found.overtakes or found.reason is Reason.DISK
    if found.reason is not Reason.DISK:
        assert hour == 4 or (used is not None and used >= 0.75)
