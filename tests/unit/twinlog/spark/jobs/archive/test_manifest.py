"""Manifests that somebody changed, that lost bytes, or that are of another time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.sample import SEGMENT
from twinlog.errors import CorruptionError
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.manifest import Manifest, digest, parse

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def changed(text: str, change: Callable[[dict[str, Any]], object], *, version: int) -> str:
    """A manifest's text as somebody edits it; of version 2 with a checksum that fits."""
    fields = json.loads(text)
    del fields["checksum"]
    fields["version"] = version
    change(fields)
    if version > 1:
        fields["checksum"] = digest(json.dumps(fields, sort_keys=True, indent=1) + "\n")
    return json.dumps(fields, sort_keys=True, indent=1) + "\n"


def first(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Change a field of the first segment."""
    return lambda fields: fields["segments"][0].update({name: value})


def file(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Change a field of the first file."""
    return lambda fields: fields["segments"][0]["files"][0].update({name: value})


def test_the_newest_manifest_has_a_checksum(kept: Path) -> None:
    """A segment less, and one digit that flipped in the span of a queue: rows would be missing."""
    path = ArchiveDir(kept).path_of(1)
    text = path.read_text()
    fields = json.loads(text)
    del fields["segments"][0]
    path.write_text(json.dumps(fields, sort_keys=True, indent=1) + "\n")
    assert main(["spark", "restore", "--archive", str(kept), "--check"], PLAIN) == 65
    queues = text.index('"queues"')
    digit = next(i for i in range(queues, len(text)) if text[i] in "123456789")
    path.write_text(f"{text[:digit]}{int(text[digit]) ^ 1}{text[digit + 1 :]}")
    with pytest.raises(CorruptionError, match="is not what was written"):
        ArchiveDir(kept).newest()
    path.write_text(text)
    assert len(ArchiveDir(kept).newest().segments) > 1


def test_a_manifest_of_version_1_is_read(kept: Path) -> None:
    """It has no checksum; the next commit follows it."""
    place = ArchiveDir(kept)
    now = place.newest()
    old = changed(place.path_of(1).read_text(), lambda fields: None, version=1)
    assert parse(old, "x") == now
    place.path_of(1).write_text(old)
    assert place.newest() == now


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"[]", b"null", b"[" * 100_000, b'{"a'])
def test_bytes_that_are_no_manifest(data: bytes, kept: Path) -> None:
    """Damage, told by its name; never a trace."""
    ArchiveDir(kept).path_of(1).write_bytes(data)
    assert main(["spark", "restore", "--archive", str(kept), "--check"], PLAIN) == 65


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        first("base", "x"),
        first("end", None),
        first("end", -1),
        first("records_end", SEGMENT * 9),
        first("rest", "zz"),
        first("rest", 7),
        first("sha256", 5),
        first("group", 5),
        first("epochs", [[1]]),
        file("path", 7),
        file("path", "../../etc/passwd"),
        file("path", "/etc/passwd"),
        file("rows", True),
        lambda fields: fields.update(number="1"),
        lambda fields: fields.update(id=5),
        lambda fields: fields.update(segments=None),
        lambda fields: fields.update(more=1),
    ],
)
def test_values_that_nobody_wrote(
    change: Callable[[dict[str, Any]], object], version: int, kept: Path
) -> None:
    """Refused before anything is done with them."""
    text = changed(ArchiveDir(kept).path_of(1).read_text(), change, version=version)
    with pytest.raises(CorruptionError, match="m is not a manifest"):
        parse(text, "m")


def test_a_manifest_of_a_later_version(kept: Path) -> None:
    """It says which ones are read."""
    text = changed(ArchiveDir(kept).path_of(1).read_text(), lambda fields: None, version=3)
    with pytest.raises(CorruptionError, match="version 3, this twinlog reads 1 to 2"):
        parse(text, "m")


def test_what_only_looks_like_a_manifest_is_passed_over(kept: Path) -> None:
    """A copy that an editor left beside it counts for nothing."""
    place = ArchiveDir(kept)
    now = place.newest()
    for name in ("manifest-00000000000000000007.yaml", "manifest-9.json", "manifest-.json"):
        (place.path_of(1).parent / name).write_text(Manifest(number=9).text())
    assert place.newest() == now
