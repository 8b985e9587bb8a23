"""SCRAM-SHA-256: proving that one knows a password, without sending it. Pure.

The node keeps a `Verifier`: with it one cannot log in, and no password can be read from it. Each
side proves itself to the other: the client with the proof, the node with its signature, both over
the random numbers of both, so nothing of it can be used a second time. Sources: RFC 5802, RFC 7677;
channel binding is not used (docs/decisions).

Not here: random numbers, who asks when (``twinlog.session.link``, ``node.access.visitor``).
"""

from __future__ import annotations

import base64
import hmac
import unicodedata
from dataclasses import dataclass, field
from hashlib import pbkdf2_hmac, sha256
from typing import Final

from twinlog.errors import UsageError

ITERATIONS: Final = 16_384
"""Of new passwords: about 8 ms for who logs in, once for each password and process."""
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000
"""What a client carries out: fewer would help who guesses, more would be a way to hold it up."""
PASSWORD_MAX: Final = 1_024
SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a node keeps of a password.

    Attributes:
        salt: Random, another one for each password.
        iterations: How often it was hashed.
        stored_key: Proves the client's proof.
        server_key: Makes the node's signature.
    """

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def normal(password: str) -> str:
    """Return a password as it is hashed.

    Raises:
        UsageError: It is empty, too long, or has control characters.
    """
    found = unicodedata.normalize("NFKC", password)
    if not 0 < len(found) <= PASSWORD_MAX or any(unicodedata.category(c) == "Cc" for c in found):
        text = f"a password has 1 to {PASSWORD_MAX} characters, none of them a control character"
        raise UsageError(text, code="password")
    return found


def salted(password: str, salt: bytes, iterations: int) -> bytes:
    """Return the password, salted and hashed; raises UsageError as `normal`."""
    return pbkdf2_hmac("sha256", normal(password).encode(), salt, iterations)


def verifier(password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """Return what nodes keep of a password; raises UsageError as `normal`."""
    secret = salted(password, salt, iterations)
    return Verifier(salt, iterations, sha256(_client_key(secret)).digest(), _server_key(secret))


def said(user: str, own: str, whole: str, salt: bytes, iterations: int) -> bytes:
    """Return what both sides sign: all that was said, as the messages of RFC 5802 would say it.

    Args:
        user: Name, of a user's alphabet.
        own: The client's random number.
        whole: That number and the node's after it.
        salt: Of the password.
        iterations: Of the password.
    """
    first, salt64 = f"n={user},r={own}", base64.b64encode(salt).decode()
    return f"{first},r={whole},s={salt64},i={iterations},c=biws,r={whole}".encode()


def proof(secret: bytes, spoken: bytes) -> bytes:
    """Return the client's proof; ``secret`` is `salted`, ``spoken`` is `said`."""
    key = _client_key(secret)
    return _mixed(key, _mac(sha256(key).digest(), spoken))


def proven(kept: Verifier, spoken: bytes, shown: bytes) -> bool:
    """Whether a proof is right."""
    if len(shown) != sha256().digest_size:
        return False
    key = _mixed(shown, _mac(kept.stored_key, spoken))
    return hmac.compare_digest(sha256(key).digest(), kept.stored_key)


def signature(kept: Verifier, spoken: bytes) -> bytes:
    """Return what proves to the client that the node knows its verifier."""
    return _mac(kept.server_key, spoken)


def signed(secret: bytes, spoken: bytes, shown: bytes) -> bool:
    """Whether a node's signature is right."""
    return hmac.compare_digest(_mac(_server_key(secret), spoken), shown)


def matches(kept: Verifier, password: str) -> bool:
    """Whether a password is the one of a verifier; costs as much as a login."""
    try:
        secret = salted(password, kept.salt, kept.iterations)
    except UsageError:
        return False
    return hmac.compare_digest(sha256(_client_key(secret)).digest(), kept.stored_key)


def _client_key(secret: bytes) -> bytes:
    return _mac(secret, b"Client Key")


def _server_key(secret: bytes) -> bytes:
    return _mac(secret, b"Server Key")


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
