"""What one side of a connection shows: files of TLS, and who it says it is.

Pure. Reading the files is ``twinlog.session.tls``, the login ``twinlog.session.login``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

AUTHORITY: Final = "certificates/authority.pem"
"""The authority's certificate, relative to the cluster file, where ``certificates init`` makes it.
"""

BAD_FILES: Final = "tls-files"
"""Code of `UsageError`: certificates or keys that cannot be used as they are."""

REFUSED: Final = "tls"
"""Code of `UsageError`: the two sides do not agree on TLS, or one refused the other's certificate.
"""


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client says it is, with the password; a node gets neither it nor what it could use."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of one side, each PEM; and the login of a client.

    Attributes:
        authority: Certificates of the authority that must have signed the peer's; empty: no TLS is
            spoken.
        certificate: Our own, with the chain to the authority if it is signed by another one
            between; None: we show none.
        key: Its private key, not encrypted; None: it stands in the file of the certificate.
        login: User and password, for nodes that ask who it is; None: we do not say.
    """

    authority: str
    certificate: str | None = None
    key: str | None = None
    login: Login | None = None

    @classmethod
    def of(cls, said: Tls | str | None) -> Tls | None:
        """Return the files, from themselves or from the path of the authority alone."""
        return cls(said) if isinstance(said, str) else said

    def files(self) -> tuple[str, ...]:
        """Return the paths that are read."""
        return tuple(path for path in (self.authority, self.certificate, self.key) if path)


@dataclass(frozen=True, slots=True)
class EtcdShown:
    """What the coordinator shows to etcd.

    Attributes:
        files: For TLS; None: none is spoken.
        user: Who it is; empty: etcd does not ask.
        password_file: File with the password of ``user``.
    """

    files: Tls | None = None
    user: str = ""
    password_file: str = ""


NOTHING: Final = EtcdShown()
"""Neither TLS nor a user."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The files of one process, and what its client port asks.

    Attributes:
        files: Its own certificate, its key, the authority.
        clients_ask: Whether clients must show a certificate.
        clients_authority: Who signs those; None: the authority of the cluster.
    """

    files: Tls
    clients_ask: bool = False
    clients_authority: str | None = None
