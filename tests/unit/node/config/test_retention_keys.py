"""The keys of retention: how they are written, what is refused, what the store gets of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config.config import ConfigError, load
from node.config.layer_settings import retention_settings
from storage.settings import RetentionSettings

NODE = '[cluster]\nname = "y"\n[[node]]\nname = "n1"\naddress = "127.0.0.1"\n'


def settings(tmp_path: Path, more: str) -> RetentionSettings:
    """What the store of n1 gets."""
    path = tmp_path / "cluster.toml"
    path.write_text(NODE + more)
    return retention_settings(load(path).node("n1"))


def test_what_nobody_sets_is_rocketmqs(tmp_path: Path) -> None:
    """72 hours, at four, 75, 85 and 90 per cent."""
    found = settings(tmp_path, "")
    assert (found.keep_seconds, found.keep_bytes, found.hours) == (72 * 3600, None, (4,))
    assert (found.disk_clean, found.disk_force, found.disk_refuse) == (0.75, 0.85, 0.9)
    assert (found.archive, found.erase) == (False, False)


def test_every_key_arrives(tmp_path: Path) -> None:
    """A node may have its own."""
    found = settings(
        tmp_path,
        '[node.retention]\nkeep = "none"\nkeep_bytes = "2 GiB"\ndelete_at = "04:00; 16:00"\n'
        'archive = true\nerase = true\nlook = "3 s"\npause = "1 s"\nhold = "5 s"\n'
        'wait_for_slaves = "2 h"\nkeep_cut = "1 d"\n[node.storage]\ndisk_clean = "50 %"\n',
    )
    assert (found.keep_seconds, found.keep_bytes, found.hours) == (None, 2 << 30, (4, 16))
    assert (found.archive, found.erase) == (True, True)
    assert (found.look_seconds, found.pause_seconds, found.hold_seconds) == (3, 1, 5)
    assert (found.absent_seconds, found.keep_cut_seconds) == (7200, 86400)
    assert found.disk_clean == 0.5


def test_any_time_is_no_hour(tmp_path: Path) -> None:
    """And the hours are the node's own."""
    found = settings(tmp_path, '[retention]\ndelete_at = "any time"\n')
    assert found.hours is None
    assert 0 <= found.hour_of(0) < 24


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('[retention]\ndelete_at = "4"', "is not an hour of day"),
        ('[retention]\ndelete_at = "25:00"', "is not an hour of day"),
        ('[retention]\ndelete_at = "\u00b2\u00b2:00"', "is not an hour of day"),
        ('[retention]\nkeep = "old"', "is not a duration"),
        ('[retention]\nkeep_bytes = "1 KiB"', "at least 64 KiB"),
        ("[storage]\ndisk_clean = 75", "is not a share of the disk"),
        ('[storage]\ndisk_clean = "\u00b2 %"', "is not a share of the disk"),
        (f'[storage]\ndisk_clean = "{"9" * 400} %"', "is not a share of the disk"),
        ('[storage]\ndisk_clean = "175 %"', "at most 100 %"),
        ('[storage]\ndisk_clean = "95 %"', "must rise in this order"),
        ('[storage]\ndisk_refuse = "80 %"', "must rise in this order"),
        ("[storage]\nsegment_size = []", "segment_size is []; it must be"),
        ("[storage]\nsegment_size = 100001", "must be a multiple of 4096"),
        ("[replication]\nheartbeat = []", "heartbeat is []; it must be"),
        ("[replication]\nheartbeat = true", 'heartbeat is "True", which is not a duration'),
        ('[coordinator]\nkind = "odd"', 'kind is "odd"; it can be embedded or etcd'),
        ('[[node]]\nname = "a b"\naddress = "127.0.0.1"', 'name is "a b", which is not a name'),
    ],
)
def test_mistakes_are_told(tmp_path: Path, lines: str, told: str) -> None:
    """In the words of somebody who edits the file."""
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, lines + "\n")
    assert told in str(caught.value)
