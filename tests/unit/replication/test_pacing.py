"""Windows, back-off and jitter."""

from __future__ import annotations

from replication.pacing import Backoff, Jitter, Window


def test_a_frame_is_always_allowed_when_none_is_under_way() -> None:
    """However large it is."""
    window = Window(100, 4)
    window.sent(1000, 1000)
    assert not window.open
    window.acked(999)
    assert not window.open
    window.acked(1000)
    assert window.open
    assert window.bytes == 0


def test_small_frames_are_bounded_by_their_number() -> None:
    """And acknowledged in any portion."""
    window = Window(100, 3)
    for end in (1, 2, 3):
        assert window.open
        window.sent(end, 1)
    assert not window.open
    window.acked(2)
    assert (window.frames, window.bytes) == (1, 1)
    window.clear()
    assert window.open


def test_a_pause_doubles_up_to_its_limit() -> None:
    """And begins anew after success."""
    backoff = Backoff(1.0, 4.0, Jitter(3))
    pauses = [backoff.pause() for _ in range(4)]
    for pause, wanted in zip(pauses, (1.0, 2.0, 4.0, 4.0), strict=True):
        assert 0.8 * wanted <= pause <= 1.2 * wanted
    backoff.reset()
    assert backoff.pause() <= 1.2


def test_a_seed_decides_the_jitter() -> None:
    """The same seed, the same row; two seeds differ."""
    rows = [[jitter.factor() for _ in range(5)] for jitter in map(Jitter, (1, 1, 2))]
    assert rows[0] == rows[1] != rows[2]
    assert all(0.8 <= factor < 1.2 for row in rows for factor in row)
