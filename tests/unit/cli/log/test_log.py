"""``twinlog log``: what each command prints and ends with, on golden stores and on ours."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.golden import cases, manifest, unpack
from tests.stores.sample import flip, put, sample
from twinlog.format.log_file import file_name


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words), {})
    said = capsys.readouterr()
    return code, said.out, said.err


def dumped(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> list[dict[str, Any]]:
    code, out, _ = run(capsys, "log", "dump", str(root), "-o", "jsonl", *words)
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("case", cases())
def test_dump_has_every_field_of_the_manifest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    """One object for each message, same names and values, compressed bodies decompressed too."""
    found = dumped(capsys, unpack(case, tmp_path))
    records = [item for item in found if item.pop("kind") == "Record"]
    wanted = manifest(case)["messages"]
    assert [{name: r[name] for name in w} for r, w in zip(records, wanted, strict=True)] == wanted


def test_dump_shows_the_messages_of_inner_batches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each with its own offset, properties and body; other records have no such field."""
    found = dumped(capsys, unpack("09-batch", tmp_path), "--bodies")
    batches = [item for item in found if "inner" in item]
    assert batches
    for item in batches:
        assert item["sys_flag"] & 0x80
        assert len(item["inner"]) == int(item["properties"]["INNER_NUM"])
        first = int(item["properties"]["INNER_BASE"])
        numbers = [message["queue_offset"] for message in item["inner"]]
        assert numbers == list(range(first, first + len(numbers)))
        whole = base64.b64decode(item["body"])
        assert all(base64.b64decode(message["body"]) in whole for message in item["inner"])
    assert not any(item.get("sys_flag", 0) & 0x80 for item in found if "inner" not in item)


def test_dump_shows_blanks_and_damage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Objects of another kind, in log order; raw goes on behind the damage."""
    root = unpack("03c-bad-body", tmp_path)
    kept = dumped(capsys, root)
    assert kept[-1] == {
        "kind": "Damage",
        "file": "commitlog/00000000000000524288",
        "offset": 578924,
        "length": 61114,
        "what": "recovery cuts here: the body does not match its CRC",
        "harm": "tail",
    }
    blanks = [[item["offset"], item["size"]] for item in kept if item["kind"] == "Blank"]
    assert blanks == manifest("03c-bad-body")["log"]["blanks"]
    raw = dumped(capsys, root, "--raw")
    assert sum(item["kind"] == "Record" for item in raw) == 1499
    [damage] = [item for item in raw if item["kind"] == "Damage"]
    assert damage["offset"] == 578924
    assert raw[-1]["physical_offset"] == 639709


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("start:", 0, 329),
        ("-3:", 326, 329),
        ("-5:-3", 324, 326),
        ("+4", 0, 4),
        ("284:2000", 1, None),
        ("end:", 329, 329),
        ("@2026-11-21T07:17:16.990Z:", 323, 329),
        (":@2026-11-21T07:17:04.1Z", 0, 1),
    ],
)
def test_dump_of_a_range(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, first: int, last: int | None
) -> None:
    """Numbers are log offsets, counts are records, times are store times."""
    messages = manifest("01-basic")["messages"]
    if text.startswith("@"):
        first = next(i for i, m in enumerate(messages) if m["store_timestamp"] >= 1795245436990)
    offsets = [message["physical_offset"] for message in messages]
    want = offsets[first:last] if last is not None else [o for o in offsets if 284 <= o < 2000]
    found = dumped(capsys, unpack("01-basic", tmp_path), f"--range={text}")
    assert [item["physical_offset"] for item in found] == want


def test_dump_with_bodies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Bodies come as base64, only when asked for."""
    ours = sample()
    root = ours.write(tmp_path)
    with_bodies = dumped(capsys, root, "--bodies", "--range=-1:")
    assert base64.b64decode(with_bodies[0]["body"]) == b"l" * 300
    assert "body" not in dumped(capsys, root, "--range=-1:")[0]


def test_dump_of_what_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """65 only when there are bytes and no record; an empty log is dumped; no store is 66."""
    put(tmp_path / "bad" / "commitlog" / file_name(0), b"x" * 4096)
    put(tmp_path / "bad" / "abort", b"1")
    code, out, err = run(capsys, "log", "dump", str(tmp_path / "bad"), "-o", "jsonl")
    assert (code, json.loads(out)["kind"]) == (65, "Damage")
    assert "log verify" in err
    (tmp_path / "bad" / "abort").unlink()
    assert run(capsys, "log", "dump", str(tmp_path / "bad"))[0] == 65
    assert run(capsys, "log", "verify", str(tmp_path / "bad"))[0] == 65
    put(tmp_path / "empty" / "commitlog" / file_name(0), bytes(4096))
    assert run(capsys, "log", "dump", str(tmp_path / "empty"), "-o", "jsonl")[:2] == (0, "")
    assert run(capsys, "log", "dump", str(tmp_path))[0] == 66
    assert run(capsys, "log", "dump", str(tmp_path / "nowhere"))[0] == 66
    code, _, err = run(capsys, "log", "dump", str(tmp_path / "empty"), "--range", "5")
    assert code == 64
    assert "hint:" in err


def test_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """0 sound, 65 damaged with file and offset, 2 unreadable."""
    ours = sample()
    root = ours.write(tmp_path, flushed=ours.end)
    code, out, _ = run(capsys, "log", "verify", str(root), "-o", "json")
    assert (code, json.loads(out)["state"], json.loads(out)["findings"]) == (0, "sound", [])
    bad = ours.entries[5]
    flip(root / "commitlog" / file_name(0), bad.start + 3)
    code, out, _ = run(capsys, "log", "verify", str(root), "-o", "json")
    found = json.loads(out)
    assert (code, found["state"], found["kind"]) == (65, "damaged", "LogVerify")
    assert {(f["file"], f["offset"]) for f in found["findings"] if f["grade"] == "damage"} == {
        (f"commitlog/{file_name(0)}", bad.start)
    }
    assert "from" in found["findings"][0]["readable"]
    code, out, _ = run(capsys, "log", "verify", str(root))
    assert code == 65
    assert f"commitlog/{file_name(0)}" in out


def test_verify_of_a_file_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known to be wrong, but not everything could be looked at."""
    root = sample().write(tmp_path)
    opened = Path.open

    def refuse(self: Path, *arguments: str) -> object:
        if self.parent.name == "0" and self.parent.parent.name == "t":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments)

    monkeypatch.setattr(Path, "open", refuse)
    code, out, _ = run(capsys, "log", "verify", str(root), "-o", "json")
    assert (code, json.loads(out)["state"]) == (2, "unreadable")


def test_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """0 when no byte differs where both have bytes, else 1 with the first."""
    ours = sample()
    one, two = ours.write(tmp_path / "one"), ours.write(tmp_path / "two")
    code, out, _ = run(capsys, "log", "compare", str(one), str(two), "-o", "json")
    assert (code, json.loads(out)["equal_to"]) == (0, ours.end)
    flip(two / "commitlog" / file_name(0), 777)
    code, out, _ = run(capsys, "log", "compare", str(one), str(two), "-o", "json")
    assert (code, json.loads(out)["first_difference"]) == (1, 777)


def test_compare_without_a_byte_in_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whether they are equal is unknown; an empty log may be equal to any."""
    trimmed, short = unpack("13-trimmed", tmp_path / "1"), unpack("01-basic", tmp_path / "2")
    for one, two in ((trimmed, short), (short, trimmed)):
        code, out, _ = run(capsys, "log", "compare", str(one), str(two), "-o", "json")
        assert (code, json.loads(out)["equal"]) == (2, False)
    assert run(capsys, "log", "compare", str(one), str(two))[1].startswith("nothing to compare")
    (tmp_path / "3" / "commitlog").mkdir(parents=True)
    assert run(capsys, "log", "compare", str(short), str(tmp_path / "3"))[0] == 0


def test_info_and_epochs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Segments and epochs with their bounds."""
    ours = sample()
    root = ours.write(tmp_path, flushed=5000)
    code, out, _ = run(capsys, "log", "info", str(root), "-o", "json")
    found = json.loads(out)
    assert (code, found["made_by"], found["end"]) == (0, "twinlog", ours.end)
    assert sum(s["records"] for s in found["segments"]) == sum(e.count for e in ours.entries)
    assert [s["flushed"] for s in found["segments"]] == [True] + [False] * (
        len(found["segments"]) - 1
    )
    assert {s["crc"] for s in found["segments"]} == {"ok"}
    code, out, _ = run(capsys, "log", "epochs", str(root), "-o", "json")
    first, second = json.loads(out)["epochs"]
    assert (first["epoch"], first["start"], first["end"]) == (1, 0, second["start"])
    assert (second["epoch"], second["end"]) == (2, ours.end)
    for words in (["info"], ["epochs"], ["dump"], ["verify"]):
        for output in ("table", "wide", "tsv", "jsonl", "name"):
            assert run(capsys, "log", *words, str(root), "-o", output)[0] == 0
