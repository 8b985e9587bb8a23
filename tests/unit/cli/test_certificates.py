"""``certificates init``: what is made, what is left alone, and what is said without the extra."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509

from tests.fakes.cli_cluster import FakeCluster
from twinlog.session.tls import client_context, server_context


def made(cluster: FakeCluster, *words: str) -> dict[str, bool]:
    """Which certificates a call made, by name."""
    code, out, err = cluster.run("certificates", "init", "-o", "json", *words)
    assert code == 0, err
    return {one["name"]: one["made"] for one in json.loads(out)["certificates"]}


def test_every_process_gets_a_certificate_that_works(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    names = {"authority", "n1", "n2", "n3", "coordinator", "operator"}
    assert made(cluster) == dict.fromkeys(names, True)
    folder = tmp_path / "certificates"
    for name in names - {"authority"}:
        found = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
        hosts = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert name in hosts.get_values_for_type(x509.DNSName)
    for key in folder.glob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    from twinlog.session.tls_files import Tls

    files = Tls(*(str(folder / name) for name in ("authority.pem", "n1.pem", "n1.key")))
    assert client_context(files) and server_context(files, ask=True)


def test_what_is_there_stays_unless_it_is_renewed(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    made(cluster)
    folder = tmp_path / "certificates"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not any(made(cluster).values())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "n2.pem").unlink()
    assert [name for name, new in made(cluster).items() if new] == ["n2"]
    found = made(cluster, "--renew", "--host", "db1.example", "--host", "10.1.2.3")
    assert not found.pop("authority") and all(found.values())
    assert (folder / "authority.pem").read_bytes() == before["authority.pem"]
    new = x509.load_pem_x509_certificate((folder / "n1.pem").read_bytes())
    hosts = new.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "db1.example" in hosts.get_values_for_type(x509.DNSName)
    assert "10.1.2.3" in map(str, hosts.get_values_for_type(x509.IPAddress))


def test_it_says_what_the_file_needs(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    assert (
        '[tls] authority = "certificates/authority.pem"' in cluster.run("certificates", "init")[1]
    )
    elsewhere = str(tmp_path / "elsewhere")
    out = cluster.run("certificates", "init", elsewhere)[1]
    assert f'private_key = "{elsewhere}/{{name}}.key"' in out


def test_an_authority_without_its_key_signs_nothing(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    made(cluster)
    (tmp_path / "certificates" / "authority.key").unlink()
    code, _, err = cluster.run("certificates", "init", "--renew")
    assert code == 66 and "authority.key is not" in err


def test_an_authority_without_its_certificate_is_not_replaced(tmp_path: Path) -> None:
    """Its key would be overwritten, and what it has signed could never be renewed."""
    cluster = FakeCluster(tmp_path)
    made(cluster)
    key = tmp_path / "certificates" / "authority.key"
    before = key.read_bytes()
    (tmp_path / "certificates" / "authority.pem").unlink()
    code, _, err = cluster.run("certificates", "init")
    assert code == 66 and "its certificate" in err
    assert key.read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("authority.pem", b"garbage", "authority.pem holds no certificate"),
        ("authority.key", b"garbage", "authority.key holds no private key"),
        ("authority.key", b"", "authority.key holds no private key"),
        ("n2.pem", b"-----BEGIN CERTIFICATE-----\ngarbage\n", "n2.pem holds no certificate"),
    ],
)
def test_a_file_of_no_use_is_named(tmp_path: Path, file: str, content: bytes, why: str) -> None:
    """With exit 65 and no report of a bug; nothing is signed."""
    cluster = FakeCluster(tmp_path)
    made(cluster)
    (tmp_path / "certificates" / file).write_bytes(content)
    code, _, err = cluster.run("certificates", "init")
    assert code == 65 and why in err and "new folder" in err


def test_the_key_of_another_authority_signs_nothing(tmp_path: Path) -> None:
    """What it signs is refused by every process that has the authority's certificate."""
    cluster = FakeCluster(tmp_path)
    made(cluster)
    made(cluster, str(tmp_path / "other"))
    (tmp_path / "other" / "authority.key").replace(tmp_path / "certificates" / "authority.key")
    before = (tmp_path / "certificates" / "n1.pem").read_bytes()
    code, _, err = cluster.run("certificates", "init", "--renew")
    assert code == 65 and "is not the key of" in err
    assert (tmp_path / "certificates" / "n1.pem").read_bytes() == before


def test_a_key_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    """One that an operator has brought, say of RSA or Ed25519, or with a passphrase."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    cluster = FakeCluster(tmp_path)
    made(cluster)
    key = tmp_path / "certificates" / "authority.key"
    other = ed25519.Ed25519PrivateKey.generate()
    key.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    code, _, err = cluster.run("certificates", "init", "--renew")
    assert code == 65 and "elliptic curve" in err
    secret, hidden = ec.generate_private_key(ec.SECP256R1()), BestAvailableEncryption(b"x")
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    code, _, err = cluster.run("certificates", "init", "--renew")
    assert code == 65 and "no private key that can be read" in err


def test_a_node_cannot_have_the_files_of_the_authority(tmp_path: Path) -> None:
    """``--renew`` would write its certificate over the authority's."""
    cluster = FakeCluster(tmp_path)
    cluster.run("config", "check")  # the file is there now
    file = tmp_path / "cluster.toml"
    file.write_text(file.read_text().replace('"n2"', '"authority"'))
    code, _, err = cluster.run("certificates", "init")
    assert code == 78 and "give the node another name" in err
    assert not (tmp_path / "certificates").exists()


def test_without_the_extra_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name.partition(".")[0] == "cryptography":
            raise ModuleNotFoundError(f"No module named {name!r}", name="cryptography")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    code, _, err = FakeCluster(tmp_path).run("certificates", "init")
    assert code == 69 and "pip install 'twinlog[tls]'" in err


def test_odd_values_are_refused(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    assert cluster.run("certificates", "init", "--days", "0")[0] == 64
    code, _, err = cluster.run("--tls-cert", "x.pem", "cluster", "status")
    assert code == 64 and "--tls-cert and --tls-key need --tls-ca" in err
