"""TLS: which files prove who we are, whom we trust, and what a failed handshake means.

TLS 1.3 only, through Python's ``ssl``. ``twinlog.session.tls_files`` names the files;
`client_context` and `server_context` read them. `ClientContext` keeps the context of a client and
reads changed files again, so a client that lives for months takes new certificates by itself. A
server's certificates change on a signal only (``replication.net.certificates``): its files may be
half replaced at any other moment.

Nothing is sent at the end of a connection (no ``close_notify``): every frame says how long it is,
and a connection that ends between two frames is a lost one, however it ended. Sessions are not
resumed: servers send no tickets, so that bytes from an idle server always mean that it says
something.

Times: seconds. Not here: bytes on their way (``twinlog.session.tls_socket``), which port wants what
(``node.config``).
"""

from __future__ import annotations

import errno
import os
import ssl
import threading
from typing import Final

from twinlog.errors import UsageError
from twinlog.session.tls_files import BAD_FILES, REFUSED, Tls

_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": (
        "wants a certificate from us, and we gave none",
        "give one: --tls-cert FILE --tls-key FILE",
    ),
    "UNKNOWN_CA": (
        "refuses our certificate: it trusts another authority than ours",
        "both sides need certificates of one authority",
    ),
    "CERTIFICATE_EXPIRED": (
        "refuses our certificate: it has expired",
        "make a new one: twinlog certificates init",
    ),
    "BAD_CERTIFICATE": (
        "refuses our certificate",
        "its own log says why: look for tls_refused",
    ),
    "CERTIFICATE_UNKNOWN": (
        "refuses our certificate",
        "its own log says why: look for tls_refused",
    ),
    "DECRYPT_ERROR": (
        "cannot verify what we signed: our key does not belong to our certificate",
        "compare the files of --tls-cert and --tls-key",
    ),
    "PROTOCOL_VERSION": (
        "speaks no TLS 1.3",
        "both sides must run twinlog with OpenSSL 1.1.1 or later",
    ),
}
"""What the peer's alert means, and what to do; by a part of OpenSSL's name for it."""

_NO_RECORD: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH", "RECORD_LAYER")
"""OpenSSL's names for bytes that are no TLS at all, by parts of them."""

_REFUSED_HERE: Final = "is refused here for its certificate: "

_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)
"""OpenSSL's numbers of what is wrong with a certificate: expired, of the future, of another name
or IP address. Any other means that the authority did not sign it."""


class TlsRefused(OSError):
    """A handshake failed, or the peer ended TLS with an alert.

    Attributes:
        text: What the peer, named before it, is or does; for a person.
        hint: What to do.
        final: Whether the same attempt would end the same way.
    """

    def __init__(self, text: str, hint: str, *, final: bool = True) -> None:
        super().__init__(errno.EPROTO, text)
        self.text = text
        self.hint = hint
        self.final = final

    def __str__(self) -> str:
        """The text, without the number of the error."""
        return self.text

    def error(self, who: object) -> UsageError:
        """Return the error for a caller; ``who`` is the peer's address."""
        return UsageError(f"{who} {self.text}", code=REFUSED, hint=self.hint)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Read the files for connections that we open: the peer's certificate must be for its address.

    Raises:
        UsageError: A file cannot be read or used; code `BAD_FILES`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _read(context, tls)
    return context


def etcd_context(tls: Tls) -> ssl.SSLContext:
    """As `client_context`, for etcd's HTTP: from TLS 1.2 on, which older etcd speaks.

    Raises:
        UsageError: A file cannot be read or used; code `BAD_FILES`.
    """
    context = client_context(tls)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def server_context(tls: Tls, *, authority: str | None = None, ask: bool) -> ssl.SSLContext:
    """Read the files for connections that others open.

    Args:
        tls: Ours; the certificate is needed.
        authority: Who signs the certificates of those; None: ``tls.authority``.
        ask: Whether they must show one.

    Raises:
        UsageError: A file cannot be read or used; code `BAD_FILES`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _read(context, Tls(authority or tls.authority, tls.certificate, tls.key))
    context.verify_mode = ssl.CERT_REQUIRED if ask else ssl.CERT_NONE
    context.num_tickets = 0
    return context


def _read(context: ssl.SSLContext, tls: Tls) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    found = {path: _content(path) for path in tls.files()}
    try:
        context.load_verify_locations(cadata=found[tls.authority].decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        text = f"{tls.authority} has no certificate that can be read: {_short(error)}"
        raise UsageError(text, code=BAD_FILES, hint="it must be a PEM file") from None
    if tls.certificate is None:
        return
    key = tls.key or tls.certificate
    if b"ENCRYPTED PRIVATE KEY" in found[key] or b"Proc-Type: 4,ENCRYPTED" in found[key]:
        hint = "store it without a password, readable by its owner only"
        raise UsageError(f"the key {key} needs a password", code=BAD_FILES, hint=hint)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ValueError) as error:
        mismatch = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        why = "they do not belong together" if mismatch else _short(error)
        text = f"{tls.certificate} and its key {key} cannot be used: {why}"
        raise UsageError(text, code=BAD_FILES, hint="both must be PEM files") from None


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        text = f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
        hint = "make certificates for trying out: twinlog certificates init DIR"
        raise UsageError(text, code=BAD_FILES, hint=hint) from None


def _short(error: Exception) -> str:
    """Return the words of OpenSSL's text, without its numbers."""
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) and reason else str(error)


def refusal(error: ssl.SSLError) -> TlsRefused:
    """Return what a failed handshake means: who refused whom, and why."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused_here(error)
    reason = error.reason or ""
    if "ALERT" in reason or "CERTIFICATE_REQUIRED" in reason:
        for name, (text, hint) in _ALERTS.items():
            if name in reason:
                return TlsRefused(text, hint)
        return TlsRefused(f"refuses the connection: {_short(error)}", "its own log says why")
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return TlsRefused("is refused here: it shows no certificate", "give it one")
    if "UNSUPPORTED_PROTOCOL" in reason or "PROTOCOL_VERSION" in reason:
        return TlsRefused(*_ALERTS["PROTOCOL_VERSION"])
    if isinstance(error, ssl.SSLEOFError):
        return closed_early()
    if any(name in reason for name in _NO_RECORD):
        return not_tls()
    return TlsRefused(f"breaks the rules of TLS: {_short(error)}", "compare the address")


def because(error: ssl.SSLError) -> str:
    """Return why a certificate is refused here, without saying whose it is."""
    return refusal(error).text.removeprefix(_REFUSED_HERE)


def _refused_here(error: ssl.SSLCertVerificationError) -> TlsRefused:
    number = error.verify_code
    if number in _OTHER_NAME:
        why = error.verify_message.partition(", ")[2].rstrip(".") or "it is for another name"
        hint = "its certificate must name the address by which it is reached"
    elif number == _EXPIRED:
        why, hint = "it has expired", "make a new one, then have its process read it (SIGHUP)"
    elif number == _NOT_YET:
        why, hint = "it is not valid yet", "compare the clocks of both machines"
    else:
        why = f"our authority did not sign it ({error.verify_message})"
        hint = "compare the authority of both sides: --tls-ca, or authority under [tls]"
    return TlsRefused(_REFUSED_HERE + why, hint)


def not_tls() -> TlsRefused:
    """Return what an answer in the clear means."""
    hint = "leave out --tls-ca (or [tls] of the file), or compare the address"
    return TlsRefused("does not speak TLS", hint)


def closed_early() -> TlsRefused:
    """Return what the end of a connection inside the handshake means."""
    hint = "it may be starting or stopping, speak no TLS, or refuse us; its own log says"
    return TlsRefused("closed the connection during the TLS handshake", hint, final=False)


class ClientContext:
    """The context of a client, made when first needed; for any number of threads.

    Called for each new connection: where a file has changed since, it is read again, and as long as
    the new files cannot be used, the old context stays.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[tuple[int, int], ...] = ()

    def __call__(self) -> ssl.SSLContext:
        """Return the context.

        Raises:
            UsageError: The files could never be used so far.
        """
        stamps = self._now()
        with self._lock:
            if self._context is None:
                self._context, self._stamps = client_context(self._tls), stamps
            elif stamps != self._stamps:
                try:
                    self._context, self._stamps = client_context(self._tls), stamps
                except UsageError:
                    return self._context  # half replaced: looked at again next time
            return self._context

    def _now(self) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for path in self._tls.files():
            try:
                status = os.stat(path)
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_ino))
        return tuple(found)
