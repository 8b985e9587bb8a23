"""What a query shows to nodes: which options fit together, and where what they lack comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinlog.session.tls_files import Login, Tls
from twinlog.spark.errors import SourceError
from twinlog.spark.nodes.connect import client_of
from twinlog.spark.plan.credentials import NONE, Credentials
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.sink.settings import parse as sink


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls.certificate": "c"}, "tls.certificate needs tls.ca"),
        ({"tls.ca": "a", "tls.key": "k"}, "tls.key needs tls.certificate"),
        ({"passwordFile": "p"}, "passwordFile needs user"),
        ({"Password": "x"}, "a password is no option"),
    ],
)
def test_source_and_sink_refuse_the_same(given: dict[str, str], words: str) -> None:
    """In the same words."""
    for call in (lambda: parse({"servers": "n1:1", **given}, use="batch"),
                 lambda: sink({"servers": "n1:1", **given})):  # fmt: skip
        with pytest.raises(SourceError, match=words):
            call()


def test_a_directory_is_shown_nothing(tmp_path: Path) -> None:
    """An option that would do nothing is refused."""
    with pytest.raises(SourceError, match=r"tls\.ca is for nodes"):
        parse({"path": str(tmp_path), "tls.ca": "a"}, use="batch")


def test_options_come_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each half for itself; the password is read from the file where the client is made."""
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"TWINLOG_TLS_{name}", name)
    monkeypatch.setenv("TWINLOG_USER", "bob")
    monkeypatch.setenv("TWINLOG_PASSWORD", "of bob")
    monkeypatch.setattr("twinlog.client.blocking.secure_of", lambda _: None)
    assert client_of("n1:1", NONE, 1.0).tls == Tls("CA", "CERT", "KEY", Login("bob", "of bob"))
    shown = Credentials("a", "c", "k", "alice", str(secret))
    assert client_of("n1:1", shown, 1.0).tls == Tls("a", "c", "k", Login("alice", "open sesame"))
    with pytest.raises(SourceError, match="gone cannot be read"):
        client_of("n1:1", Credentials(user="alice", password_file=str(tmp_path / "gone")), 1.0)


def test_options_of_a_query_are_its_credentials() -> None:
    """Of the source and of the sink."""
    given = {
        "servers": "n1:1", "TLS.CA": "a", "tls.certificate": "c", "tls.key": "k",
        "user": "alice", "passwordfile": "p",
    }  # fmt: skip
    wanted = Credentials("a", "c", "k", "alice", "p")
    assert parse(given, use="stream").credentials == wanted == sink(given).credentials
