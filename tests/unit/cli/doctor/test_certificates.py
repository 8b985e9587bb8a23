"""``doctor`` says which certificate is of no use, which ends soon, and where there is no TLS."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cli.certificates import make_certificates
from cli.doctor.checks import Grade
from cli.doctor.doctor import certificates
from node.config.config import ClusterConfig, load
from node.config.pages import Local, write_local


def made(folder: Path, **local: object) -> ClusterConfig:
    """The file of a cluster of one node, with its certificates."""
    path = folder / "cluster.toml"
    write_local(path, Local(nodes=1, **local))  # type: ignore[arg-type]
    return load(path)


def judged(config: ClusterConfig, *, ahead_days: float = 0.0) -> dict[str, Grade]:
    """The grade of each check, on a day."""
    now_ms = int((time.time() + ahead_days * 86400) * 1000)
    return {finding.check: finding.grade for finding in certificates(config, now_ms)}


def test_certificates_on_this_machine_are_judged(tmp_path: Path) -> None:
    config = made(tmp_path, tls=True)
    folder = tmp_path / "certificates"
    assert judged(config) == {}
    make_certificates(config, folder, days=20)
    names = ("n1", "coordinator", "operator")
    assert judged(config) == {f"certificate {name}": Grade.FINE for name in names}
    assert set(judged(config, ahead_days=7).values()) == {Grade.BETTER}
    (folder / "operator.pem").unlink()
    other = tmp_path / "other"
    make_certificates(config, other)
    for end in ("pem", "key"):
        (folder / f"n1.{end}").write_bytes((other / f"n1.{end}").read_bytes())
    assert judged(config) == {
        "certificate n1": Grade.WRONG,
        "certificate coordinator": Grade.FINE,
    }
    wrong = next(certificates(config, 0))
    assert "our authority did not sign it" in wrong.found
    assert wrong.command == "twinlog certificates init --renew"


def test_open_ports_without_tls_could_be_better(tmp_path: Path) -> None:
    config = made(tmp_path)
    assert judged(config) == {}
    text = config.path.read_text().replace('address = "127.0.0.1"', 'address = "10.0.0.1"')
    config.path.write_text(f"{text}\n[listen]\ninsecure = true\n")
    assert judged(load(config.path)) == {"TLS": Grade.BETTER}
