"""The archive for someone who helps: what is in it, and what never is."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cli.doctor import bundle, doctor
from cli.doctor.bundle import HIDDEN, crossed_out, fetched, hidden
from cli.doctor.checks import Machine
from tests.fakes.cli_cluster import FakeCluster


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A good machine, and nodes whose HTTP port answers."""
    monkeypatch.setattr(doctor, "look_at_machine", lambda *, lock_wanted: Machine())
    monkeypatch.setattr(bundle, "METRICS_SECONDS", 0.0)


def cluster_of(folder: Path) -> FakeCluster:
    """Three nodes with HTTP ports; n3 does not answer."""
    cluster = FakeCluster(folder)
    for number, node in enumerate(cluster.nodes.values()):
        node["addresses"] = {"host": "127.0.0.1", "http_port": 7412 + 10 * number}
    cluster.down = {"n3"}
    return cluster


def unpacked(path: Path) -> dict[str, str]:
    """Its files by name."""
    with tarfile.open(path) as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive.getmembers())
        return {name: file.read().decode() for name, file in files if file is not None}


def test_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said first; a port that does not answer is named, and the rest is kept."""

    def fetch(url: str, until: str = "", *, tls: object = None) -> str:
        if ":7422" in url:
            raise OSError("refused")
        return f"{url}\n"

    monkeypatch.setattr(bundle, "fetched", fetch)
    cluster = cluster_of(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "n1.log").write_text("x" * 10 + '{"password": "hunter2"}\n')
    path = tmp_path / "b.tar.gz"
    code, out, err = cluster.run("debug", "bundle", str(path), "-o", "json")
    assert code == 0, err
    assert "nodes/n1/status.json" in err, "what it will hold is said first"
    found = unpacked(path)
    names = {name.removeprefix("twinlog-debug/") for name in found}
    assert names == {
        "doctor.json", "settings.json", "cluster.json", "coordinator.json", "history.json",
        "logs/n1.log", "manifest.json", "nodes/n1/events.txt", "nodes/n1/groups.json",
        "nodes/n1/metrics-1.txt", "nodes/n1/metrics-2.txt", "nodes/n1/status.json",
        "nodes/n2/status.json",
    }  # fmt: skip
    assert json.loads(found["twinlog-debug/cluster.json"])["nodes"][2]["state"] == "unreachable"
    manifest: dict[str, Any] = json.loads(found["twinlog-debug/manifest.json"])
    why = {one["part"]: one["why"] for one in manifest["parts"] if one["why"]}
    assert why == dict.fromkeys(
        [f"nodes/n2/{name}" for name in ("metrics-1.txt", "metrics-2.txt", "groups.json",
                                         "events.txt")], "refused",
    )  # fmt: skip
    assert json.loads(out)["missing"] == list(why)
    assert "hunter2" not in found["twinlog-debug/logs/n1.log"]
    assert path.stat().st_mode & 0o077 == 0, "for its owner only"


def test_nothing_is_overwritten_and_a_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is the same."""
    monkeypatch.setattr(bundle, "fetched", lambda url, until="", *, tls=None: "")
    path = tmp_path / "b.tar.gz"
    code, out, _ = cluster_of(tmp_path).run("debug", "bundle", str(path), "--dry-run")
    assert (code, path.exists()) == (0, False)
    assert "nodes/n1/metrics-2.txt" in out
    path.write_bytes(b"mine")
    code, _, err = cluster_of(tmp_path).run("debug", "bundle", str(path))
    assert (code, path.read_bytes()) == (1, b"mine")
    assert "was not touched" in err


def test_no_cluster_is_a_bundle_too(tmp_path: Path) -> None:
    """When nothing answers it is needed most."""
    cluster = cluster_of(tmp_path)
    cluster.down = {"n1", "n2", "n3", "coordinator"}
    path = tmp_path / "b.tar.gz"
    code, out, _ = cluster.run("debug", "bundle", str(path), "-o", "json")
    assert (code, json.loads(out)["missing"]) == (0, ["cluster.json"]), "it says what it lacks"
    found = unpacked(path)
    assert set(found) == {f"twinlog-debug/{name}.json" for name in (
        "doctor", "settings", "manifest")}  # fmt: skip
    assert "no node of demo answers" in json.loads(found["twinlog-debug/manifest.json"])["cluster"]


@pytest.mark.parametrize(
    "name", ["password", "tls.key", "access.secret", "http_token", "private", "Passphrase"]
)
def test_secrets_are_not_told(name: str) -> None:
    """By their names, at any depth; numbers and names of record keys stay."""
    told = {name: "hunter2"}, {name: ["hunter2", "hunter3"]}
    document = {"a": list(map(MappingProxyType, told)), "key_index_slots": 5, "tokens": 7}
    assert hidden(document) == {"a": [{name: HIDDEN}] * 2, "key_index_slots": 5, "tokens": 7}


def test_what_looks_like_a_secret_is_crossed_out() -> None:
    """In logs and metrics; of what is quoted all, whatever is in it."""
    line = """{"password": "a", "x": 1} secret=b; Token: c passwd="d e\\"f" token='g h' secret="i"""
    found = crossed_out(line)
    assert found.count(HIDDEN) == 6
    assert '"x": 1' in found
    assert not set("bdefghi") & set(re.sub(r"\(not told\)|[a-zA-Z]{5,}", "", found))


def test_a_secret_at_the_cut_of_a_log_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line of what is kept may have lost the word that says what it is."""
    monkeypatch.setattr(bundle, "fetched", lambda url, until="", *, tls=None: "")
    monkeypatch.setattr(bundle, "PART_BYTES_MAX", 1000)
    cluster = cluster_of(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "n1.log").write_text("password=hunter2\n" + "x" * 990 + "\n")
    path = tmp_path / "b.tar.gz"
    assert cluster.run("debug", "bundle", str(path))[0] == 0
    assert unpacked(path)["twinlog-debug/logs/n1.log"] == "x" * 990 + "\n"


def test_an_interrupted_bundle_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a node is asked; and the next call may have the same name."""

    def interrupted(url: str, until: str = "", *, tls: object = None) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "fetched", interrupted)
    path = tmp_path / "b.tar.gz"
    try:
        code = cluster_of(tmp_path).run("debug", "bundle", str(path))[0]
    except KeyboardInterrupt:
        code = 130
    assert (code, path.exists()) == (130, False)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With what to do, and no report of a bug."""
    code, _, err = cluster_of(tmp_path).run("debug", "bundle", str(tmp_path / "no" / "b.tar.gz"))
    assert code == 66
    assert "no/b.tar.gz: No such file or directory" in err


def test_the_end_of_a_long_log_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part has a largest size."""
    monkeypatch.setattr(bundle, "fetched", lambda url, until="", *, tls=None: "m" * 5000)
    monkeypatch.setattr(bundle, "PART_BYTES_MAX", 1000)
    cluster = cluster_of(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "n1.log").write_text("old\n" * 5000 + "the end\n")
    path = tmp_path / "b.tar.gz"
    assert cluster.run("debug", "bundle", str(path))[0] == 0
    found = unpacked(path)
    assert found["twinlog-debug/logs/n1.log"].endswith("the end\n")
    sizes = {name: len(text) for name, text in found.items() if "manifest" not in name}
    assert max(sizes.values()) == 1000


def test_a_port_that_does_not_answer_is_an_error() -> None:
    """The archive names it."""
    with pytest.raises(OSError, match="refused"):
        fetched("http://127.0.0.1:9/metrics")
