"""What every test run shares.

``TWINLOG_REQUIRE=all`` (set by ``.ci/run``) makes a skipped test an error: a machine that should
run everything must not pass because something was missing. What only root may do is left out.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.permission import NOT_ALLOWED

# No deadline: how long an example takes says something about the machine. ``.ci/run`` always draws
# the same examples, so that a red run is about the change; everybody else draws new ones.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci",
    settings.get_profile("dev"),
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_skipped: list[str] = []

DESCRIPTORS_MAX = 512
"""So many open files make this process look for those that ended tests left to the collector. py4j
waits with ``select``, which takes descriptors below 1,024 only: a run that kept more left a
streaming query of Spark without its call-backs."""
DESCRIPTORS_MORE = 64
"""So many more than were left the last time make it look again."""

_left = [0]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background with Ctrl-C ignored, children inherit that,
    # and then no test of Ctrl-C could work.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what was skipped, and why."""
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and NOT_ALLOWED not in report.longreprtext
    ):
        _skipped.append(f"{report.nodeid}: {report.longreprtext}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a skip into a failed session where nothing may be skipped."""
    if _skipped and os.environ.get("TWINLOG_REQUIRE") == "all" and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the skipped tests that this session counts as failures."""
    if _skipped and os.environ.get("TWINLOG_REQUIRE") == "all":
        terminalreporter.section("skipped, and TWINLOG_REQUIRE=all says nothing may be")
        for line in _skipped:
            terminalreporter.write_line(line)


def _opened() -> int:
    """Return how many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def pytest_runtest_teardown() -> None:
    """Close the mapped files that ended tests left to the collector, before they are too many."""
    opened = _opened()
    if opened > max(DESCRIPTORS_MAX, _left[0] + DESCRIPTORS_MORE):
        gc.unfreeze()  # a node that ran in this process froze what it found
        gc.collect()
        _left[0] = _opened()
