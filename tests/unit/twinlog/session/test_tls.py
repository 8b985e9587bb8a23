"""Files of TLS: which are refused and why, and when changed ones are taken."""

from __future__ import annotations

import os
import pickle
import ssl
from pathlib import Path

import pytest

from tests.fixtures.certificates import Certificates
from twinlog import Client
from twinlog.errors import UsageError
from twinlog.session.tls import ClientContext, client_context, refusal, server_context
from twinlog.session.tls_files import BAD_FILES, Tls


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_contexts_are_strict(certificates: Certificates) -> None:
    """TLS 1.3, the other side's certificate, and its name: none of it can be left out."""
    files = certificates.of("n1")
    client = client_context(files)
    assert client.minimum_version is ssl.TLSVersion.TLSv1_3
    assert client.verify_mode is ssl.CERT_REQUIRED and client.check_hostname
    peers = server_context(files, ask=True)
    assert peers.minimum_version is ssl.TLSVersion.TLSv1_3
    assert peers.verify_mode is ssl.CERT_REQUIRED and peers.num_tickets == 0
    assert server_context(files, ask=False).verify_mode is ssl.CERT_NONE


def broken(certificates: Certificates, what: str) -> Tls:
    """Files of which one cannot be used."""
    files, folder = certificates.of("n1"), certificates.folder
    assert files.key is not None and files.certificate is not None
    match what:
        case "authority missing":
            return Tls(str(folder / "none.pem"), files.certificate, files.key)
        case "authority empty":
            Path(files.authority).write_text("")
        case "authority not ascii":
            Path(files.authority).write_bytes(b"\xff\xfe")
        case "certificate missing":
            Path(files.certificate).unlink()
        case "certificate garbage":
            Path(files.certificate).write_text("-----BEGIN CERTIFICATE-----\nnot\n")
        case "other key":
            other = certificates.of("n2").key
            assert other is not None
            Path(files.key).write_bytes(Path(other).read_bytes())
        case "key missing":
            Path(files.key).unlink()
        case _:
            Path(files.key).write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII=\n")
    return files


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("authority missing", "none.pem cannot be read: no such file"),
        ("authority empty", "authority.pem has no certificate that can be read"),
        ("authority not ascii", "authority.pem has no certificate that can be read"),
        ("certificate missing", "n1.pem cannot be read: no such file"),
        ("certificate garbage", "n1.key cannot be used"),
        ("other key", "n1.key cannot be used: they do not belong together"),
        ("key missing", "n1.key cannot be read: no such file"),
        ("key with a password", "n1.key needs a password"),
    ],
)
def test_a_bad_file_is_named_and_nobody_is_asked_for_a_password(
    certificates: Certificates, what: str, text: str
) -> None:
    files = broken(certificates, what)
    for read in (client_context, lambda tls: server_context(tls, ask=True)):
        with pytest.raises(UsageError) as caught:
            read(files)
        assert text in caught.value.text
        assert caught.value.code == BAD_FILES and caught.value.hint


def test_a_client_takes_changed_files_and_keeps_the_old_ones_while_they_are_bad(
    certificates: Certificates,
) -> None:
    files = certificates.of("app")
    context = ClientContext(files)
    first = context()
    assert context() is first
    assert files.certificate is not None
    good = Path(files.certificate).read_bytes()
    Path(files.certificate).write_text("half")
    assert context() is first
    Path(files.certificate).write_bytes(good)
    os.utime(files.certificate, ns=(1, 1))
    second = context()
    assert second is not first and context() is second


def test_files_that_were_never_good_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        ClientContext(Tls(str(tmp_path / "none.pem")))()


def test_a_pickled_client_keeps_its_files(certificates: Certificates) -> None:
    with Client("127.0.0.1:1", tls=certificates.authority) as client:
        assert client.tls == Tls(certificates.authority)
        again = pickle.loads(pickle.dumps(client))
        assert again.tls == client.tls
        again.close()


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "wants a certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", "trusts another authority"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "it has expired"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "no TLS 1.3"),
        ("UNSUPPORTED_PROTOCOL", "no TLS 1.3"),
        ("TLSV1_ALERT_INTERNAL_ERROR", "refuses the connection"),
        ("WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "shows no certificate"),
        ("BAD_SIGNATURE", "breaks the rules of TLS: bad signature"),
        (None, "breaks the rules of TLS"),
    ],
)
def test_every_reason_becomes_a_sentence_with_a_hint(reason: str | None, text: str) -> None:
    error = ssl.SSLError(1, "[SSL] text")
    error.reason = reason  # type: ignore[assignment]
    found = refusal(error)
    assert text in found.text and found.hint and found.final
    assert str(found.error("n1")) == f"n1 {found.text}"
