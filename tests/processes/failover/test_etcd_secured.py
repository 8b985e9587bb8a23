"""etcd that speaks TLS alone, asks for a certificate, and for user and password."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.config.pages import Local, write_local
from replication.coordinator.etcd_gateway import (
    EtcdGateway,
    GatewayAway,
    GatewayRefused,
    GatewayUnknown,
    text_of,
)
from tests.fixtures.certificates import Certificates
from tests.fixtures.etcd import Etcd, installed
from tests.fixtures.processes import Processes, free_ports
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError
from twinlog.session.tls_files import EtcdShown, Tls

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PASSWORD = "a word for etcd"
KEY = {"key": text_of("/twinlog/x")}


def guard(gateway: EtcdGateway) -> None:
    """Have etcd ask who it is; ``keeper`` may use the keys of registers alone."""
    keys = {"key": text_of("/twinlog/"), "range_end": text_of("/twinlog0")}
    for path, body in (
        ("auth/user/add", {"name": "root", "password": PASSWORD}),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/role/add", {"name": "registers"}),
        ("auth/role/grant", {"name": "registers", "perm": {"permType": "READWRITE", **keys}}),
        ("auth/user/add", {"name": "keeper", "password": PASSWORD}),
        ("auth/user/grant", {"user": "keeper", "role": "registers"}),
        ("auth/enable", {}),
    ):
        gateway.change(path, body)
    gateway.close()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Etcd, EtcdShown]]:
    """One member that asks for certificates, and what its user will show."""
    installed()
    made = Certificates(tmp_path / "certificates")
    etcd = Etcd(tmp_path, 1, made.of("etcd"))
    (tmp_path / "password").write_text(PASSWORD + "\n")
    try:
        etcd.start()
        yield etcd, EtcdShown(Tls(made.authority), "keeper", str(tmp_path / "password"))
    finally:
        etcd.close()


def refusal(etcd: Etcd, shown: EtcdShown) -> str:
    """What a query with these files and this user comes to."""
    gateway = EtcdGateway(etcd.endpoints, shown)
    try:
        with pytest.raises((GatewayAway, GatewayRefused, GatewayUnknown)) as caught:
            gateway.ask("kv/range", KEY)
    finally:
        gateway.close()
    assert isinstance(caught.value, TwinlogError)
    return caught.value.text


def test_a_register_behind_tls_and_a_password(
    secured: tuple[Etcd, EtcdShown], tmp_path: Path
) -> None:
    """A cluster works with it, over a restart of etcd, which forgets all tokens."""
    etcd, shown = secured
    a_certificate_opens_it(etcd, shown, tmp_path)
    etcd.kill(0)
    etcd.ask = False
    etcd.start(0)
    each_error_says_what_is_wrong(etcd, shown, tmp_path)
    members = tuple(f"{host}:{port}" for host, port in etcd.endpoints)
    local = Local(nodes=1, base_port=free_ports(1), coordinators=1, etcd=members)
    write_local(tmp_path / "cluster.toml", local)
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8")
    keys = """
etcd_authority = "certificates/authority.pem"
etcd_user = "keeper"
etcd_password_file = "password"
"""
    begun = text.index("etcd = [")
    end = text.index("\n", begun)
    (tmp_path / "cluster.toml").write_text(text[:end] + keys + text[end + 1 :], encoding="utf-8")
    cluster = Processes(tmp_path)
    assert cluster.config.coordinator.etcd_shown == shown
    try:
        cluster.start_all()
        etcd.kill(0)
        etcd.start(0)
        cluster.stop("coordinator")
        cluster.start("coordinator")
        cluster.settled(1)
        with Client("{}:{}".format(*cluster.address("n1"))) as client:
            client.create_topic("t", 1)
            client.send("t", b"x")
        assert PASSWORD not in cluster.tail("coordinator")
    finally:
        cluster.close()


def a_certificate_opens_it(etcd: Etcd, shown: EtcdShown, folder: Path) -> None:
    """Without one etcd says nothing; with one, and users switched on, its gateway wants no name."""
    assert "set etcd_certificate" in refusal(etcd, EtcdShown(shown.files))
    named = Certificates(folder / "certificates").of("keeper")
    guard(EtcdGateway(etcd.endpoints, EtcdShown(named)))
    assert "without a common name" in refusal(etcd, replace(shown, files=named))


def each_error_says_what_is_wrong(etcd: Etcd, shown: EtcdShown, folder: Path) -> None:
    """No TLS, another authority, no user, a wrong password, a missing file, another key."""
    wrong = folder / "wrong"
    wrong.write_text("guessed\n")
    other = Certificates(folder / "other")
    other.of("x")
    for given, words in (
        (replace(shown, files=None), "set etcd_authority"),
        (replace(shown, files=Tls(other.authority)), "our authority did not sign it"),
        (replace(shown, files=Tls(str(folder / "none.pem"))), "none.pem cannot be read"),
        (EtcdShown(shown.files), "user name is empty"),
        (replace(shown, password_file=str(wrong)), "compare etcd_user (keeper)"),
        (replace(shown, password_file=str(folder / "gone")), "gone cannot be read"),
    ):
        assert words in refusal(etcd, given), words
    gateway = EtcdGateway(etcd.endpoints, shown)
    gateway.ask("kv/range", KEY)
    with pytest.raises(GatewayRefused, match="permission denied"):
        gateway.ask("kv/range", {"key": text_of("/elsewhere")})
    gateway.close()
