"""``store adopt``, ``log repair`` and ``log recover`` die in any disk call.

After each of the three kinds of loss the tool is run once more, as its user would, and the
directory is what it would have been: every record that was there, no damage, a store that opens.
"""

from __future__ import annotations

import shutil

import pytest

from tests.crash.rotation import numbers
from tests.crash.test_every_operation import LOSSES, lose
from tests.crash.tools import Tool, from_files, to_files, tools
from tests.fakes.faults import SimulatedCrash

NAMES = ("adopt", "repair-ours", "repair-rocketmq", "recover")


def calls(tool: Tool) -> int:
    """Disk calls of the tool when nothing happens to it; it does its work."""
    disk = from_files(tool.before)
    tool.work(disk, tool.before)
    count = disk.faults.calls
    disk.faults.asleep = True
    tool.after(disk, tool.bodies)
    return count


def crash(tool: Tool, number: int, kind: str) -> None:
    """Die in call ``number``, lose something, run the tool again, and look."""
    disk = from_files(tool.before)
    disk.faults.crash(after=number)
    with pytest.raises(SimulatedCrash):
        tool.work(disk, tool.before)
    lose(disk, kind, number)
    root = to_files(disk)
    try:
        tool.work(disk, root)
    finally:
        shutil.rmtree(root)
    tool.after(disk, tool.bodies)


@pytest.mark.slow
def test_the_tools_are_worth_it() -> None:
    """Together with the history of `test_every_operation` about 1,900 calls."""
    assert sum(calls(tool) for tool in tools().values()) >= 350


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("name", NAMES)
def test_every_call(name: str, kind: str) -> None:
    """See the module's text."""
    tool = tools()[name]
    for number in numbers(calls(tool), kind):
        crash(tool, number, kind)
