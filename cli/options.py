"""The global options: read once, before the command is looked at.

They may stand before the noun or anywhere behind it (``twinlog demo -o json``), so they are taken
out of the words first; no command has an option of the same name.  Behind ``--`` nothing is taken.

Precedence: option, then environment, then default.  Times are seconds; a timeout of None waits for
ever.  Pure: the words and the environment come in, a value goes out.

Not here: the options of a single command (its function's parameters).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from cli.failures import Exit, Failure, nearest
from twinlog.units import UnitError, parse_duration

TIMEOUT_SECONDS = 10.0
"""How long a whole command may take when nothing else is said: long enough for a switchover, short
enough that a script notices."""


class Output(StrEnum):
    """How data is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    TSV = "tsv"
    NAME = "name"
    SCHEMA = "schema"


class Colour(StrEnum):
    """When colours are used."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Globals:
    """What the global options said.

    ``timeout_given`` tells a chosen timeout from the default, for commands whose own default is
    longer.  ``called`` is what the words of the call said about where the cluster is (`` -c FILE``,
    `` -e HOST:PORT``): hints repeat it, so that a pasted command asks the same cluster.
    """

    config: Path | None = None
    endpoints: tuple[str, ...] = ()
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    user: str = ""
    password_file: str = ""
    timeout: float | None = TIMEOUT_SECONDS
    timeout_given: bool = False
    output: Output = Output.TABLE
    colour: Colour = Colour.AUTO
    quiet: bool = False
    verbose: int = 0
    exact_bytes: bool = False
    help: bool = False
    version: bool = False
    called: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One global option, for parsing, help and the reference page."""

    names: tuple[str, ...]
    value: str
    environment: str
    summary: str


OPTIONS = (
    Option(
        ("-c", "--config"),
        "FILE",
        "TWINLOG_CONFIG",
        "cluster file; default cluster.toml in ., ./data, the user's config folder, /etc/twinlog",
    ),
    Option(
        ("-e", "--endpoint"),
        "HOST:PORT",
        "TWINLOG_ENDPOINT",
        "any node's client address; repeatable; overrides the file",
    ),
    Option(
        ("--tls-ca",),
        "FILE",
        "TWINLOG_TLS_CA",
        "the authority that must have signed the nodes' certificates; overrides [tls] of the file",
    ),
    Option(("--tls-cert",), "FILE", "TWINLOG_TLS_CERT", "certificate that we show; with --tls-ca"),
    Option(("--tls-key",), "FILE", "TWINLOG_TLS_KEY", "its private key, if in a file of its own"),
    Option(("--user",), "NAME", "TWINLOG_USER", "who we are; overrides [access] of the file"),
    Option(
        ("--password-file",), "FILE", "TWINLOG_PASSWORD_FILE", "file with the password of --user"
    ),
    Option(
        ("--timeout",),
        "DURATION",
        "TWINLOG_TIMEOUT",
        "the whole command, default 10 s; 0 waits for ever",
    ),
    Option(
        ("-o", "--output"),
        "FORMAT",
        "TWINLOG_OUTPUT",
        "table, wide, json, jsonl, yaml, tsv, name, or schema: the shape of json",
    ),
    Option(("--color",), "WHEN", "NO_COLOR", "auto, always or never"),
    Option(("-q", "--quiet"), "", "", "only errors on stderr"),
    Option(
        ("-v", "--verbose"),
        "",
        "",
        "files, addresses and time on stderr; twice: questions to the cluster, too",
    ),
    Option(("--bytes",), "", "", "exact numbers instead of 1.5 MiB"),
    Option(("-h", "--help"), "", "", "this text"),
    Option(("--version",), "", "", "the version"),
)

Kind = TypeVar("Kind", bound=StrEnum)

_BY_NAME = {name: option for option in OPTIONS for name in option.names}


def split(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Globals, list[str]]:
    """Take the global options out of ``words``; return them and the words that are left.

    Raises:
        Failure: A value is missing or not one of those allowed (exit 64).

    >>> options, rest = split(["topic", "list", "-o", "json", "--", "-q"], {})
    >>> options.output.value, rest
    ('json', ['topic', 'list', '--', '-q'])
    """
    found = _from_environment(environment)
    rest: list[str] = []
    endpoints: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            rest += words[at - 1 :]
            break
        name, equals, value = word.partition("=")
        option = _BY_NAME.get(name)
        if option is None:
            verbose = len(word) > 2 and set(word[1:]) == {"v"} and word[0] == "-"
            if verbose:
                found = replace(found, verbose=found.verbose + len(word) - 1)
            else:
                rest.append(word)
            continue
        if option.value and not equals:
            if at == len(words):
                raise Failure(
                    Exit.USAGE, f"{name} needs a value", hints=(f"write {name} {option.value}",)
                )
            value = words[at]
            at += 1
        if option.names[-1] in ("--config", "--endpoint"):
            found = replace(found, called=f"{found.called} {option.names[0]} {shlex.quote(value)}")
        if "--endpoint" in option.names:
            endpoints += [part.strip() for part in value.split(",") if part.strip()]
        else:
            found = _apply(found, option.names[-1], value, name)
    if endpoints:
        found = replace(found, endpoints=tuple(endpoints))
    return found, rest


def _from_environment(environment: Mapping[str, str]) -> Globals:
    found = Globals()
    for option in OPTIONS:
        value = environment.get(option.environment) if option.environment else None
        if not value:
            continue
        if option.environment == "NO_COLOR":
            found = replace(found, colour=Colour.NEVER)
        elif "--endpoint" in option.names:
            parts = tuple(part.strip() for part in value.split(",") if part.strip())
            found = replace(found, endpoints=parts)
        else:
            found = _apply(found, option.names[-1], value, option.environment)
    return found


def _apply(found: Globals, name: str, value: str, said: str) -> Globals:
    match name:
        case "--config":
            return replace(found, config=Path(value))
        case "--tls-ca":
            return replace(found, tls_ca=value)
        case "--tls-cert":
            return replace(found, tls_cert=value)
        case "--tls-key":
            return replace(found, tls_key=value)
        case "--user":
            return replace(found, user=value)
        case "--password-file":
            return replace(found, password_file=value)
        case "--timeout":
            try:
                seconds = parse_duration(value)
            except UnitError as error:
                raise Failure(Exit.USAGE, f"{said}: {error}", hints=(error.hint,)) from None
            return replace(found, timeout=seconds or None, timeout_given=True)
        case "--output":
            return replace(found, output=_choice(Output, value, said))
        case "--color":
            return replace(found, colour=_choice(Colour, value, said))
        case "--quiet":
            return replace(found, quiet=True)
        case "--verbose":
            return replace(found, verbose=found.verbose + 1)
        case "--bytes":
            return replace(found, exact_bytes=True)
        case "--help":
            return replace(found, help=True)
        case _:
            return replace(found, version=True)


def _choice(kind: type[Kind], value: str, said: str) -> Kind:
    try:
        return kind(value)
    except ValueError:
        allowed = [item.value for item in kind]
        hints = nearest(value, allowed)
        raise Failure(
            Exit.USAGE, f'{said} is "{value}"; it can be {", ".join(allowed)}', hints=hints
        ) from None
