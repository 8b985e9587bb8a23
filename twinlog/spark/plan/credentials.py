"""What a query shows to nodes, as options of source and sink: paths, and who it is; pure.

Options stand in plans, in Spark's pages and in logs, so none of them is a secret: the password lies
in a file, which each task reads where it runs. Without them a task goes by the variables that every
client goes by (``TWINLOG_TLS_CA``, ``TWINLOG_USER`` and their like).

Not here: reading the files and connecting (`twinlog.spark.nodes.connect`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinlog.spark.errors import SourceError

CA: Final = "tls.ca"
CERTIFICATE: Final = "tls.certificate"
KEY: Final = "tls.key"
USER: Final = "user"
PASSWORD_FILE: Final = "passwordFile"

MEANINGS: Final[Mapping[str, str]] = {
    CA: "For TLS: the authority that must have signed the nodes' certificates; a path on every "
    "machine of Spark, as the next two. Default: TWINLOG_TLS_CA of the environment.",
    CERTIFICATE: "A certificate that tasks show; with tls.ca.",
    KEY: "Its private key, if in a file of its own.",
    USER: "Who the query is, for clusters that ask. Default: TWINLOG_USER of the environment.",
    PASSWORD_FILE: "File with the password of user; a path on every machine of Spark. Default: "
    "TWINLOG_PASSWORD_FILE or TWINLOG_PASSWORD of the environment.",
}
"""Each option and what it means, for source and sink."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The values of these options; empty: the environment has it, or it is missing."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""

    def refuse(self, *, cluster: bool) -> None:
        """Refuse values that do not fit together.

        Args:
            cluster: Whether nodes are read or written, not directories.

        Raises:
            SourceError: They do not.
        """
        given = dict(zip(MEANINGS, (self.ca, self.certificate, self.key, self.user,
                                    self.password_file), strict=True))  # fmt: skip
        said = [name for name, value in given.items() if value]
        text = hint = ""
        if said and not cluster:
            text, hint = f"{said[0]} is for nodes, and a directory is read", "leave it out"
        elif (self.certificate or self.key) and not self.ca:
            text, hint = f"{said[0]} needs {CA}", "name the authority of the nodes' certificates"
        elif self.key and not self.certificate:
            text, hint = f"{KEY} needs {CERTIFICATE}", "name the certificate that it belongs to"
        elif self.password_file and not self.user:
            text, hint = f"{PASSWORD_FILE} needs {USER}", "name whose password it is"
        if text:
            raise SourceError(text, code="option", hint=hint)


NONE: Final = Credentials()
"""The environment has it, or there is nothing to show."""


def refuse_password(name: str) -> None:
    """Refuse an option that would be a secret.

    Raises:
        SourceError: It is the password itself.
    """
    if name.lower() == "password":
        text = "a password is no option: Spark shows options in plans, pages and logs"
        hint = f"write it into a file on every machine of Spark: {PASSWORD_FILE}"
        raise SourceError(text, code="option", hint=hint)
