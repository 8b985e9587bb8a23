"""``twinlog certificates``: an authority of one's own, for trying out TLS.

    DIR/authority.pem  DIR/authority.key      signs the others; keep the key away from the nodes
    DIR/n1.pem         DIR/n1.key             one pair for each process of the cluster file
    DIR/coordinator.pem, DIR/operator.pem     operator: what commands show

What is there stays; ``--renew`` signs new certificates with the same authority. A certificate
names the address of its process in the cluster file, and this machine.

Keys are written readable by their owner only. ``cryptography`` is imported here alone, and only
when the command runs. Not here: reading certificates (``twinlog.session.tls``).
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.parsing import PRIVATE
from twinlog.session.tls_files import AUTHORITY

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from node.config.config import ClusterConfig

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
BEFORE = timedelta(hours=1)
"""A certificate is valid from this long ago on: clocks differ."""

THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
OPERATOR = "operator"
TAKEN = ("authority", OPERATOR, "coordinator")
"""Names of files that no node can have."""


def init(
    folder: Path | None = None,
    /,
    *,
    renew: bool = False,
    host: Annotated[tuple[str, ...], Parameter(name="--host", consume_multiple=False)] = (),
    days: int = CERTIFICATE_DAYS,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make an authority, and certificates for every process of the cluster file.

    For trying out: with the authority's key one can be any of them. What exists is not touched.
    Running processes read new files when they get SIGHUP.

    Args:
        folder: Where to; default ``certificates`` beside the cluster file.
        renew: Sign new certificates, with the authority that is there.
        host: One more name or IP address by which the processes are reached; repeatable.
        days: How long certificates are valid.
    """
    if not 1 <= days <= AUTHORITY_DAYS:
        raise Failure(Exit.USAGE, f"--days is {days}; it can be 1 to {AUTHORITY_DAYS}")
    config = context.config()
    where = folder or config.path.parent / Path(AUTHORITY).parent
    made = make_certificates(config, where, renew=renew, hosts=host, days=days)
    lines = [] if config.tls.authority else [f"for the cluster file: {tls_lines(where, config)}"]
    context.printer.answer(
        Answer(
            kind="CertificatesInit",
            fields={"folder": str(where), "certificates": made},
            head=f"{where}: {sum(bool(one['made']) for one in made)} made",
            tables=[Table.of("NAME MADE UNTIL +FILE", made)],
            items=made,
            names=[str(one["file"]) for one in made],
            tail="\n".join(lines),
            next="twinlog config check" if lines else "",
        )
    )
    return Exit.OK


def tls_lines(where: Path | None = None, config: ClusterConfig | None = None) -> str:
    """What a cluster file needs for the certificates in a folder, in one line."""
    if where is None or config is None or where.resolve() == config.path.parent / "certificates":
        return f'[tls] authority = "{AUTHORITY}"'
    named = where.resolve()
    files = {"authority": "authority.pem", "certificate": "{name}.pem", "private_key": "{name}.key"}
    return "[tls] " + ", ".join(f'{key} = "{named / file}"' for key, file in files.items())


def make_certificates(
    config: ClusterConfig,
    folder: Path,
    *,
    renew: bool = False,
    hosts: tuple[str, ...] = (),
    days: int = CERTIFICATE_DAYS,
) -> list[Fields]:
    """Make what is missing in a folder; return a row for each certificate.

    Raises:
        Failure: The extra is not installed (exit 69), one of the authority's two files is missing
            (exit 66) or of no use (exit 65), or a node has the name of another file (exit 78).
    """
    for node in config.nodes:
        if node.name in TAKEN:
            text = (
                f"{config.path}: a node named {node.name} would have the files of the {node.name}"
            )
            raise Failure(Exit.CONFIG, text, hints=("give the node another name",))
    try:
        authority = Authority(folder)
    except ModuleNotFoundError as error:
        raise Failure(
            Exit.UNAVAILABLE,
            f"this needs {error.name}, which is an extra",
            hints=("install it: pip install 'twinlog[tls]'",),
        ) from None
    rows = [authority.row]
    for name, address in _processes(config).items():
        names = dict.fromkeys((name, *filter(None, (address,)), *THIS_MACHINE, *hosts))
        rows.append(authority.certificate(name, tuple(names), days=days, renew=renew))
    return rows


def _processes(config: ClusterConfig) -> dict[str, str]:
    """Every process that needs a certificate, and the host by which it is reached."""
    found = {node.name: node.address for node in config.nodes}
    for number, (name, _) in enumerate(config.coordinator.folders().items()):
        found[name] = config.coordinator.endpoints[number][0]
    return {**found, OPERATOR: ""}


class Authority:
    """The authority of a folder; it is made when the folder has no other.

    Raises:
        ModuleNotFoundError: ``cryptography`` is not installed.
        Failure: One of its two files is not there (exit 66), or of no use (exit 65).
    """

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self._folder = folder
        certificate, key = folder / "authority.pem", folder / "authority.key"
        new = not certificate.exists()
        if new and key.exists():
            raise Failure(
                Exit.MISSING,
                f"{key} is there, but its certificate {certificate} is not",
                hints=("every node has it: copy it here, or use a new folder",),
            )
        if new:
            folder.mkdir(parents=True, exist_ok=True)
            self._make(certificate, key)
        if not key.exists():
            raise Failure(
                Exit.MISSING,
                f"{certificate} is there, but its key {key} is not",
                hints=("sign certificates where the key is, or use a new folder",),
            )
        self._certificate = _read(certificate)
        try:
            found = load_pem_private_key(key.read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise _unfit(key, f"holds no private key that can be read: {error}") from None
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise _unfit(key, "is not a key of an elliptic curve, as this command makes them")
        if found.public_key() != self._certificate.public_key():
            raise _unfit(key, f"is not the key of {certificate}")
        try:
            self._identity = self._certificate.extensions.get_extension_for_class(
                x509.SubjectKeyIdentifier
            ).value
        except x509.ExtensionNotFound:
            raise _unfit(certificate, "has no subject key identifier") from None
        self._key = found
        self.row: Fields = _row("authority", certificate, self._certificate, made=new)

    def _make(self, certificate: Path, key: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        secret = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"twinlog authority {os.urandom(4).hex()}")
        identity = x509.SubjectKeyIdentifier.from_public_key(secret.public_key())
        usage = _usage(signs_certificates=True)
        made = (
            _builder(name, name, secret, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identity, critical=False)
        )
        _write_pair(certificate, key, _signed(made, secret), secret)

    def certificate(self, name: str, hosts: tuple[str, ...], *, days: int, renew: bool) -> Fields:
        """Make the certificate of a process, unless it is there; return its row."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        file, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        if file.exists() and not renew:
            return _row(name, file, _read(file), made=False)
        secret = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issued = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier
        made = (
            _builder(_name(name), self._certificate.subject, secret, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), False)
            .add_extension(issued(self._identity), critical=False)
        )
        found = _signed(made, self._key)
        _write_pair(file, key, found, secret)
        return _row(name, file, found, made=True)


def _read(file: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise _unfit(file, f"holds no certificate: {error}") from None


def _unfit(file: Path, why: str) -> Failure:
    hints = ("put the right file there, or use a new folder: twinlog certificates init DIR",)
    return Failure(Exit.DATA, f"{file} {why}", hints=hints)


def _name(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + timedelta(days=days))
    )


def _signed(made: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return made.sign(key, SHA256())


def _write_pair(
    certificate: Path, key: Path, found: x509.Certificate, secret: EllipticCurvePrivateKey
) -> None:
    """Write both, each as a whole; the key first, readable by its owner only."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(key, pem, 0o600)
    _write(certificate, found.public_bytes(Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)


def _row(name: str, file: Path, found: x509.Certificate, *, made: bool) -> Fields:
    until = found.not_valid_after_utc.strftime("%Y-%m-%d")
    return {"name": name, "made": made, "until": until, "file": str(file)}
