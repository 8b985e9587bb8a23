"""Three people's first day, command by command; ``field_trial`` plays it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readme.field_trial import TEXT, play, steps

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_every_command_ends_as_it_should(tmp_path: Path) -> None:
    """Each exit code and sentence is the expected one, and nothing shows a traceback."""
    assert len(list(steps(TEXT.read_text(encoding="utf-8")))) > 120
    wrong = play(tmp_path)
    assert not wrong, wrong[0]
