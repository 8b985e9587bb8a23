"""What a section is to what is known of its producer."""

from __future__ import annotations

import pytest

from storage.state.producers import Done, Line, Producers, Verdict, judge


def done(sequence: int, count: int = 2, *, digest: int = 5) -> Done:
    """A section that is in the log."""
    return Done(sequence, count, 100 + sequence, 1000 * sequence, 1000 * (sequence + 1), digest)


LINE = Line(1, (done(4), done(6), done(8)))


@pytest.mark.parametrize(
    ("line", "epoch", "sequence", "count", "digest", "verdict"),
    [
        (None, 0, 0, 1, 1, Verdict.NEXT),
        (None, 0, 5, 1, 1, Verdict.UNKNOWN),
        (LINE, 1, 10, 3, 9, Verdict.NEXT),
        (LINE, 1, 11, 3, 9, Verdict.OUT_OF_ORDER),
        (LINE, 1, 9, 3, 9, Verdict.OUT_OF_ORDER),
        (LINE, 1, 6, 2, 5, Verdict.DUPLICATE),
        (LINE, 1, 6, 2, 6, Verdict.ANOTHER),
        (LINE, 1, 6, 3, 5, Verdict.ANOTHER),
        (LINE, 1, 6, 2, 0, Verdict.DUPLICATE),
        (LINE, 1, 2, 2, 5, Verdict.DUPLICATE),
        (LINE, 1, 3, 2, 5, Verdict.OUT_OF_ORDER),
        (LINE, 0, 10, 2, 5, Verdict.OUT_OF_DATE),
        (LINE, 2, 0, 2, 5, Verdict.NEXT),
        (LINE, 2, 10, 2, 5, Verdict.OUT_OF_ORDER),
    ],
)
def test_what_a_section_is_to_its_line(
    line: Line | None, epoch: int, sequence: int, count: int, digest: int, verdict: Verdict
) -> None:
    """Only last + 1 is stored; known ones are duplicates; all else is named."""
    assert judge(line, epoch, sequence, count, digest)[0] is verdict


def test_five_sections_are_kept_and_a_new_epoch_starts_anew() -> None:
    """An older one is a duplicate whose place is forgotten."""
    line = Line(0, ())
    for sequence in range(0, 14, 2):
        line = line.with_done(0, done(sequence))
    assert [one.sequence for one in line.done] == [4, 6, 8, 10, 12]
    assert judge(line, 0, 2, 2, 5) == (Verdict.DUPLICATE, None)
    assert line.with_done(1, done(0)).done == (done(0),)


def test_the_pending_layer_lies_over_the_confirmed_one() -> None:
    """A section is undone, dropped with its role, or taken over when it is confirmed."""
    key = (7, "t", 0)
    producers = Producers()
    assert producers.rebuild(key, 0, done(0), confirmed=True)
    assert not producers.rebuild(key, 0, done(0), confirmed=True)
    before = producers.append(key, 0, done(2))
    assert before is None
    second = producers.append(key, 0, done(4))
    producers.restore(key, second)
    line = producers.line(key)
    assert line is not None
    assert line.next == 4
    producers.restore(key, before)
    line = producers.line(key)
    assert line is not None
    assert line.next == 2
    assert producers.rebuild(key, 0, done(2), confirmed=False)
    assert not producers.rebuild(key, 0, done(2), confirmed=False)
    assert producers.rebuild(key, 0, done(2), confirmed=True)
    producers.forget_pending()
    assert [(one, line.next) for one, line in producers.confirmed()] == [(key, 4)]


def lined(ends: list[int]) -> Producers:
    """Confirmed lines of one section each, that end there."""
    producers = Producers()
    for producer, end in enumerate(ends):
        producers.load((producer, "t", 0), Line(0, (Done(0, 1, 0, end - 1, end, 5),)))
    return producers


def test_lines_are_forgotten_by_the_end_of_their_last_section() -> None:
    """Confirmed ones for good; by the master alone until a cut or a new role."""
    producers = lined([10, 20, 30])
    producers.append((7, "u", 0), 0, done(0))
    assert len(producers) == 3
    producers.forget(20, confirmed=False)
    assert [producers.line((number, "t", 0)) is None for number in range(3)] == [True, True, False]
    assert len(producers) == 3, "a slave still has them"
    producers.forget_pending()
    assert producers.line((0, "t", 0)) is not None
    producers.forget(20, confirmed=True)
    assert [key[0] for key, _ in producers.confirmed()] == [2]
    late = producers.append((9, "t", 0), 0, Done(0, 1, 0, 90, 100, 5))
    assert late is None
    producers.forget(99, confirmed=False)
    assert producers.line((9, "t", 0)) is not None
    producers.forget(100, confirmed=False)
    assert producers.line((9, "t", 0)) is None
