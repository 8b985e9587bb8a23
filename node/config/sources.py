"""Where settings come from, and how mistakes in them are reported.

Four sources, the later wins: default, file, environment, flag. Every value keeps its *origin*, so
that ``config show`` can say which one won and a mistake can name ``cluster.toml:15`` or the
variable. Mistakes are collected, never raised one by one: the author of a file wants all of
them at once.

* The file: ``cluster.toml``; ``[[node]]`` tables may repeat sections (``[node.storage]``).
* The environment: ``TWINLOG_`` + path in upper case, ``TWINLOG_STORAGE_FLUSH=sync``; scalars only.
  A variable whose first word is a section but whose key is unknown is a mistake; other
  ``TWINLOG_`` variables (``TWINLOG_NODE``, ``TWINLOG_KERNELS`` ...) have other uses.
* Flags: a mapping ``{"storage.flush": "sync"}`` made by the command line.

Not here: what the keys mean and which values they take (``node.config.config``).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from node.config.toml_lines import Lines, positions
from twinlog.errors import UsageError

PREFIX = "TWINLOG_"

FOREIGN_VARIABLES = frozenset(
    {"TWINLOG_LOG_FILE", "TWINLOG_TLS_CA", "TWINLOG_TLS_CERT", "TWINLOG_TLS_KEY"}
)
"""Variables that begin like a section but have another use."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: ``kind`` is default, file, environment or flag."""

    kind: str
    where: str = ""
    line: int | None = None

    def __str__(self) -> str:
        """``default``, ``cluster.toml:15``, the variable or ``--set storage.flush``."""
        return self.kind if not self.where else self.place

    @property
    def place(self) -> str:
        """File and line, the variable, or the flag."""
        return self.where if self.line is None else f"{self.where}:{self.line}"


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Given:
    """A value as written, not yet checked."""

    value: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong: file (or variable, or flag), line from 1, what, what to do."""

    file: str
    line: int | None
    text: str
    hint: str | None = None

    @property
    def place(self) -> str:
        """``cluster.toml:15`` or the name of the variable or flag."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def render(self) -> str:
        """Return the mistake as the command line prints it, one or two lines."""
        text = f"error: {self.place}  {self.text}"
        return text if self.hint is None else f"{text}\n  hint: {self.hint}"


class ConfigError(UsageError):
    """The settings are wrong; ``mistakes`` lists everything that is, in the file's order.

    Nothing was started or changed. The command line exits with 78.
    """

    default_code = "config"

    def __init__(self, mistakes: Iterable[Mistake], *, file: str) -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(
            sorted(dict.fromkeys(mistakes), key=lambda m: (m.line is None, m.line or 0))
        )
        self.file = file
        first = self.mistakes[0]
        more = len(self.mistakes) - 1
        tail = f" (and {more} more)" if more else ""
        super().__init__(f"{first.place}: {first.text}{tail}", hint=first.hint, file=file)

    def render(self) -> str:
        """Return every mistake and their number, as ``config check`` prints them."""
        count = len(self.mistakes)
        total = f"{count} mistake{'s' if count != 1 else ''} in {self.file}"
        return "\n".join([*(mistake.render() for mistake in self.mistakes), total])


@dataclass(slots=True)
class Document:
    """All given values by section, unchecked."""

    file: str
    sections: dict[str, dict[str, Given]] = field(default_factory=dict[str, dict[str, Given]])
    nodes: list[dict[str, Given]] = field(default_factory=list[dict[str, Given]])
    node_sections: list[dict[str, dict[str, Given]]] = field(
        default_factory=list[dict[str, dict[str, Given]]]
    )
    mistakes: list[Mistake] = field(default_factory=list[Mistake])
    headers: dict[str, Origin] = field(default_factory=dict[str, Origin])
    """Where each section of the file begins."""
    outside: dict[str, dict[str, Given]] = field(default_factory=dict[str, dict[str, Given]])
    """Environment and flags: they win over everything in the file, also over ``[node.*]``."""

    def add(self, origin: Origin, text: str, hint: str | None = None) -> None:
        """Note a mistake at ``origin``."""
        self.mistakes.append(Mistake(origin.where or self.file, origin.line, text, hint))


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return the hint that names the known word closest to ``word``, or None.

    >>> nearest("mastre", ["master", "slave", "auto"])
    'the nearest is "master"'
    """
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f'the nearest is "{found[0]}"' if found else None


def listed(words: Iterable[str], last: str = "or") -> str:
    """Join words as a sentence does.

    >>> listed(["master", "slave", "auto"])
    'master, slave or auto'
    """
    found = list(words)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} {last} {found[-1]}"


def read_document(
    path: Path,
    env: Mapping[str, str],
    overrides: Mapping[str, object],
    known: Mapping[str, Collection[str]],
) -> Document:
    """Read all sources into one document.

    Args:
        path: The file; its name (not its folder) appears in mistakes.
        env: The process's environment.
        overrides: Flags, ``{"storage.flush": "sync"}``.
        known: Section name to the names of its keys.

    Raises:
        ConfigError: There is no such file, or it is not TOML. Anything else is only noted.
    """
    table, lines = _parse(path)
    document = Document(path.name)
    for name, value in table.items():
        if name == "node":
            _take_nodes(document, value, lines)
        else:
            origin = Origin("file", path.name, lines.line((name,)))
            document.headers[name] = origin
            _take_section(document, name, value, lines, into=document.sections, origin=origin)
    _take_environment(document, env, known)
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        origin = Origin("flag", f"--set {key}")
        document.outside.setdefault(section, {})[name] = Given(value, origin)
    return document


def _parse(path: Path) -> tuple[dict[str, object], Lines]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "make one: twinlog config init --local"
        raise ConfigError([Mistake(path.name, None, "there is no such file", hint)],
                          file=path.name) from None  # fmt: skip
    except UnicodeDecodeError as error:
        mistake = Mistake(path.name, None, f"byte {error.start} is not UTF-8")
        raise ConfigError([mistake], file=path.name) from None
    try:
        return cast(dict[str, object], tomllib.loads(text)), positions(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)|\(at end of document\)", str(error))
        line = int(found[1]) if found and found[1] else len(text.splitlines())
        what = str(error).split(" (at ")[0].replace("Invalid", "wrong")
        mistake = Mistake(path.name, line, f"this is not TOML: {what[0].lower()}{what[1:]}")
        raise ConfigError([mistake], file=path.name) from None


def _take_section(
    document: Document,
    name: str,
    value: object,
    lines: Lines,
    *,
    into: dict[str, dict[str, Given]],
    origin: Origin,
    above: tuple[str | int, ...] = (),
) -> None:
    if not isinstance(value, dict):
        document.add(origin, f"{name} is not a section", f"write it as [{name}] or leave it out")
        return
    taken = into.setdefault(name, {})
    for key, inner in cast(dict[str, object], value).items():
        line = lines.line((*above, name, key))
        taken[key] = Given(inner, Origin("file", document.file, line))


def _take_nodes(document: Document, value: object, lines: Lines) -> None:
    tables = cast(list[object], value) if isinstance(value, list) else []
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in tables):
        origin = Origin("file", document.file, lines.line(("node",)))
        document.add(origin, "node is one table for each node", "write it as [[node]]")
        return
    for number, table in enumerate(cast(list[dict[str, object]], tables)):
        own: dict[str, Given] = {}
        sections: dict[str, dict[str, Given]] = {}
        for key, inner in table.items():
            above = ("node", number)
            origin = Origin("file", document.file, lines.line((*above, key)))
            if isinstance(inner, dict):
                _take_section(document, key, cast(object, inner), lines, into=sections,
                              origin=origin, above=above)  # fmt: skip
            else:
                own[key] = Given(inner, origin)
        own.setdefault("", Given(None, Origin("file", document.file, lines.line(("node", number)))))
        document.nodes.append(own)
        document.node_sections.append(sections)


def _take_environment(
    document: Document, env: Mapping[str, str], known: Mapping[str, Collection[str]]
) -> None:
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in FOREIGN_VARIABLES:
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("_")
        if section not in known or not key:
            continue
        origin = Origin("environment", variable)
        if key not in known[section]:
            hint = nearest(key, known[section])
            document.add(origin, f'[{section}] has no key "{key}"', hint)
            continue
        document.outside.setdefault(section, {})[key] = Given(env[variable], origin)
