"""``store adopt``, ``log repair`` and ``log recover`` die in any disk call.

After each of the three kinds of loss the tool is run once more, as its user would, and the
directory is what it would have been: every record that was there, no damage, a store that opens.
"""

from __future__ import annotations

import shutil

import pytest

from storage.errors import ForeignStore
from storage.tools.adopt import plan_adoption
from tests.crash.rotation import numbers
from tests.crash.tools import NAMES, again, calls, crash, died, from_files, to_files, tools
from tests.fakes.disk import FakeDisk
from tests.stores.histories.history import LOSSES
from tests.stores.workbench import SETTINGS
from twinlog.format.log_file import file_name
from twinlog.store.damage import Harm
from twinlog.store.reader import StoreReader


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


def _is_entered(disk: FakeDisk, file: str) -> bool:
    return any(disk.read(f"twinlog/batches/{file}", "test"))


@pytest.mark.slow
def test_an_adoption_that_lost_its_new_log_file() -> None:
    """Its name was not durable yet, that of its batch index was: that is a tail, no damage."""
    tool = tools()["adopt"]
    for number in range(calls(tool)):
        disk = died(tool, number, "nothing")
        newest = max(disk.list("commitlog"))
        made = not (tool.before / "commitlog" / newest).exists()
        if made and disk.exists(f"twinlog/batches/{newest}") and _is_entered(disk, newest):
            break
    disk.remove(f"commitlog/{newest}", "test")
    again(tool, disk)


@pytest.mark.slow
def test_the_torn_tail_of_a_node_is_not_an_adoptions() -> None:
    """It may hold what the node was sent: recovery cuts it, and says so."""
    killed = tools()["recover"].before
    with StoreReader(killed) as reader:
        [newest] = {at - at % SETTINGS.segment_size for at in (reader.end,)}
        last = max(found.log_offset for found in reader.records())
    root = to_files(from_files(killed))
    try:
        with (root / "commitlog" / file_name(newest)).open("r+b") as log:
            log.seek(last - newest + 48)
            log.write(b"\xff" * 4)  # of a host: the record is whole for RocketMQ, the batch is not
        with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
            assert [one.harm for one in ours.damage] == [Harm.TAIL]
            with pytest.raises(ForeignStore, match="recovery cuts here"):
                plan_adoption(reader, ours)
    finally:
        shutil.rmtree(root)
