"""The certificates of one process, and the contexts of its listeners made of them.

All listeners of a process use the same certificate. They differ in what they ask of the peer:

    port                     certificate of the peer
    slaves, coordinator      must be signed by the authority
    clients                  as `clients_ask` says: none, or signed by the authority of clients
    http                     none: load balancers and scrapers have none

Connections that this process opens show the same certificate, and the peer's must be signed by the
authority and be for the address that was dialed.

`Certificates.reload` reads the files again: new connections use the new ones, open ones go on. It
takes all of them or none, after a handshake of the process with itself, in memory: a certificate
that every other process would refuse is noticed here and not when the next connection is needed.

Not here: which ports have TLS (``node.config``), handshakes (``replication.net.handshakes``).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from twinlog.errors import UsageError
from twinlog.session.tls import because, client_context, refusal, server_context
from twinlog.session.tls_files import BAD_FILES, Tls, TlsSettings


class Certificates:
    """See the module.

    Args:
        settings: The files.

    Raises:
        UsageError: A file cannot be read or used, or the authority did not sign the certificate.
    """

    until: float
    """When the certificate expires, seconds since 1970."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self.reload()

    def reload(self) -> None:
        """Read the files again; raises UsageError, and then everything is as before."""
        settings, files = self._settings, self._settings.files
        peers = server_context(files, ask=True)
        asked = settings.clients_ask
        authority = settings.clients_authority if asked else None
        clients = server_context(files, authority=authority, ask=asked)
        http = server_context(files, ask=False)
        outgoing = client_context(files)
        self.until = _until(files, peers)
        self._peers, self._clients, self._http, self._outgoing = peers, clients, http, outgoing

    def peers(self) -> ssl.SSLContext:
        """Return the context of connections from other nodes, and of all to the coordinator."""
        return self._peers

    def clients(self) -> ssl.SSLContext:
        """Return the context of connections from clients."""
        return self._clients

    def http(self) -> ssl.SSLContext:
        """Return the context of the HTTP port."""
        return self._http

    def outgoing(self) -> ssl.SSLContext:
        """Return the context of connections to other processes."""
        return self._outgoing


async def renew(certificates: Certificates, event: Callable[..., None]) -> None:
    """Read the files again in a thread and tell of it; a bad file leaves everything as it was."""
    try:
        await trio.to_thread.run_sync(certificates.reload)
    except UsageError as error:
        event("certificates_refused", "error", why=error.text, hint=error.hint)
    else:
        event("certificates_read", "info")


def _until(files: Tls, server: ssl.SSLContext) -> float:
    """Shake hands with ourselves, in memory; return when our certificate expires.

    Raises:
        UsageError: One of the two sides is refused.
    """
    client = client_context(files)
    client.check_hostname = False  # by which name others reach us is not known here
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialing = client.wrap_bio(back, there)
    accepting = server.wrap_bio(there, back, server_side=True)
    for side in (dialing, accepting, dialing, accepting):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            text = f"{files.certificate} is of no use with {files.authority}: {because(error)}"
            raise UsageError(text, code=BAD_FILES, hint=refusal(error).hint) from None
    shown = dialing.getpeercert()
    assert shown is not None, "the handshake has verified it"
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))
