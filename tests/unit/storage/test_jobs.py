"""A job keeps whatever ended it."""

from __future__ import annotations

import pytest

from storage import Job


def test_a_job_that_ends_with_any_exception_keeps_it() -> None:
    """What applies a job looks there: after a bug, too, no position moves."""

    def work() -> object:
        raise ValueError("a bug")

    job = Job("flush", work, lambda job: None)
    with pytest.raises(ValueError, match="a bug"):
        job.run()
    assert isinstance(job.error, ValueError)
