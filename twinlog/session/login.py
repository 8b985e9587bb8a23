"""Who a client is: from arguments, the environment, a file; and the random numbers of a login.

Not here: the login itself (``twinlog.session.link``).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from twinlog.errors import UsageError
from twinlog.session.tls_files import Login, Tls
from twinlog.wire import scram

NONCE_BYTES: Final = 18


def nonce() -> str:
    """Return a random number as text, for one login."""
    return base64.b64encode(os.urandom(NONCE_BYTES)).decode()


def new_verifier(password: str) -> scram.Verifier:
    """Return what nodes keep of a new password; raises UsageError as `scram.normal`."""
    return scram.verifier(password, os.urandom(scram.SALT_BYTES))


def shown(said: Tls | str | None, user: str | None, password: str | None) -> Tls | None:
    """Return what a client shows: files and login, each of arguments or else of the environment.

    Raises:
        UsageError: A user without a password, or the other way round.
    """
    files = Tls.of(said) or files_of(os.environ)
    if user is not None or password is not None:
        if not user or not password:
            text = "user and password are given together, and neither is empty"
            raise UsageError(text, code="password")
        return replace(files or Tls(""), login=Login(user, password))
    if files is not None and files.login is not None:
        return files
    found = login_of(os.environ)
    return files if found is None else replace(files or Tls(""), login=found)


def files_of(environment: Mapping[str, str]) -> Tls | None:
    """Return the files for TLS that an environment names; None: it names none.

    ``TWINLOG_TLS_CA``, and ``TWINLOG_TLS_CERT`` and ``TWINLOG_TLS_KEY`` beside it.

    >>> files_of({"TWINLOG_TLS_CA": "authority.pem"})
    Tls(authority='authority.pem', certificate=None, key=None, login=None)
    """
    authority = environment.get("TWINLOG_TLS_CA")
    if not authority:
        return None
    certificate, key = environment.get("TWINLOG_TLS_CERT"), environment.get("TWINLOG_TLS_KEY")
    return Tls(authority, certificate or None, key or None)


def login_of(environment: Mapping[str, str]) -> Login | None:
    """Return the login that an environment names; None: it names none.

    ``TWINLOG_USER``, and ``TWINLOG_PASSWORD_FILE`` (first) or ``TWINLOG_PASSWORD``.

    Raises:
        UsageError: A user without a password, or a file that cannot be read.
    """
    user = environment.get("TWINLOG_USER")
    if not user:
        return None
    path = environment.get("TWINLOG_PASSWORD_FILE")
    if path:
        return Login(user, password_in(path))
    password = environment.get("TWINLOG_PASSWORD")
    if not password:
        text = f"TWINLOG_USER is {user}, and there is no password"
        hint = "set TWINLOG_PASSWORD_FILE to a file that only you can read"
        raise UsageError(text, code="password", hint=hint)
    return Login(user, password)


def password_in(path: str) -> str:
    """Return the first line of a file.

    Raises:
        UsageError: It cannot be read, or is empty.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = file.readline(scram.PASSWORD_MAX + 2).strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        text = f"the password file {path} cannot be read: {why.lower()}"
        raise UsageError(text, code="password") from None
    if not found:
        raise UsageError(f"the password file {path} is empty", code="password")
    return found
