"""A client for a query, with the files and the login that its options or the environment name.

Called on the driver and in each task, so a password is read where it is used and travels nowhere.

Not here: the options (`twinlog.spark.plan.credentials`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from twinlog.client.blocking import Client
from twinlog.errors import Denied, TwinlogError, UsageError
from twinlog.session.login import files_of, login_of
from twinlog.session.tls_files import REFUSED, Tls
from twinlog.spark.errors import SourceError
from twinlog.spark.plan.credentials import CA, PASSWORD_FILE, USER, Credentials

NAME: Final = "twinlog-spark"
UNKNOWN: Final = "login"
"""Code of `Denied`: the node does not know who asks."""


def client_of(servers: str | Iterable[str], shown: Credentials, timeout: float) -> Client:
    """Return a client of a cluster; close it.

    Args:
        servers: Addresses of any nodes.
        shown: What the options say.
        timeout: How long one call may take, in seconds.

    Raises:
        SourceError: The file of the password cannot be read, or a user has none.
    """
    environment = dict(os.environ)
    if shown.user:
        environment["TWINLOG_USER"] = shown.user
    if shown.password_file:
        environment["TWINLOG_PASSWORD_FILE"] = shown.password_file
    files = Tls(shown.ca, shown.certificate or None, shown.key or None) if shown.ca else None
    files = files or files_of(os.environ)
    try:
        login = login_of(environment)
    except UsageError as error:
        raise SourceError(error.text, code="option", hint=f"see {PASSWORD_FILE}") from None
    if login is not None:
        files = replace(files or Tls(""), login=login)
    return Client(servers, timeout=timeout, name=NAME, tls=files)


def hint_of(error: TwinlogError) -> str | None:
    """Return what to do about an error of the cluster, in the words of Spark's options."""
    if error.code == REFUSED and "--tls-ca" in (error.hint or ""):
        return f"compare the option {CA}, a path on every machine of Spark"
    if isinstance(error, Denied) and error.code == UNKNOWN:
        return f"name who asks: the options {USER} and {PASSWORD_FILE}"
    return error.hint
