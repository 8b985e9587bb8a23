"""What a node prints about its disk at a start: what is known, and nothing that is only likely."""

from __future__ import annotations

import pytest

from cli.cluster.foreground import _found

PORTS = {"clients": 7410, "slaves": 7411, "http": 0}


@pytest.mark.parametrize(
    ("clean", "why", "said"),
    [
        (True, "", "nothing acknowledged was lost"),
        (False, "the log is damaged", "the log is damaged"),
        (False, "", "not stopped cleanly"),
    ],
)
def test_a_start_after_a_kill_does_not_speak_of_a_clean_stop(
    clean: bool, why: str, said: str
) -> None:
    """A clean start only says that nothing can be missing: a killed process has it as well."""
    boot = {"found_segments": 2, "clean": clean, "why_unclean": why, "cut_bytes": 0}
    [found, _] = _found({"boot": boot, "ports": PORTS}, "127.0.0.1")
    assert found.strip() == f"found    2 segments, {said}"
    assert not clean or "clean" not in found
