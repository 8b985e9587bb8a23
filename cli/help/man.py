"""``twinlog man``: manual pages from the same tree and the same docstrings as ``--help``.

    twinlog man ~/.local/share/man/man1        then: man twinlog, man twinlog-topic-create

Not here: the texts (``pages``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cli.answer import Answer
from cli.context import Context
from cli.failures import EXITS, Exit
from cli.help.pages import arguments, description, visible
from cli.options import OPTIONS
from cli.parsing import PRIVATE
from cli.tree import NOUNS, Command, of_noun


def man(folder: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Write the manual pages of all commands into a folder: twinlog.1, twinlog-topic-create.1 ...

    ``man`` finds them in ``~/.local/share/man/man1``. Older pages of twinlog are replaced.

    Args:
        folder: Where to; it is made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = manual_pages()
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
    context.printer.answer(
        Answer(
            kind="ManualPages",
            fields={"folder": str(folder), "pages": sorted(found)},
            head=f"wrote {len(found)} pages to {folder}",
            names=sorted(found),
            next="man twinlog",
        )
    )
    return Exit.OK


def manual_pages() -> dict[str, str]:
    """Return every page by the name of its file."""
    pages = {f"twinlog-{'-'.join(command.path)}.1": _page(command) for command in visible()}
    return {"twinlog.1": _overview(), **pages}


def _overview() -> str:
    lines = [*_head("twinlog", "a replicated message store whose files RocketMQ can read")]
    lines += [".SH SYNOPSIS", r".B twinlog", "[global options] NOUN VERB [ARGUMENT] [options]"]
    lines.append(".SH COMMANDS")
    for noun, summary in NOUNS.items():
        lines += [".TP", f".B {_safe(noun)}", _safe(summary)]
        names = ["-".join(["twinlog", *command.path]) for command in of_noun(noun)]
        lines += [".br", _safe(", ".join(f"{name}(1)" for name in names))]
    lines += [*_options(), ".SH EXIT STATUS"]
    for code, (when, _) in sorted(EXITS.items()):
        lines += [".TP", f".B {int(code)}", _safe(when)]
    return "\n".join([*lines, ""])


def _page(command: Command) -> str:
    found = arguments(command)
    words = " ".join(argument.name for argument in found if argument.positional)
    lines = [*_head(f"twinlog-{'-'.join(command.path)}", command.summary), ".SH SYNOPSIS"]
    lines += [f".B twinlog {_safe(command.name)}", _safe(f"{words} [options]".strip())]
    about = description(command).replace("``", "")
    if about:
        lines.append(".SH DESCRIPTION")
        for paragraph in about.split("\n\n"):
            lines += [".PP", _safe(" ".join(paragraph.split()))]
    if found:
        lines.append(".SH OPTIONS")
        for argument in found:
            default = f" [default: {argument.default}]" if argument.default else ""
            text = argument.text.replace("``", "") + default
            lines += [".TP", f".B {_safe(argument.name)}", _safe(text)]
    lines += [".SH EXAMPLES", ".nf", *map(_safe, command.examples), ".fi", *_options()]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR twinlog (1)", ""])


def _head(name: str, summary: str) -> Iterator[str]:
    yield f'.TH "{name.upper()}" 1 "" twinlog twinlog'
    yield ".SH NAME"
    yield f"{_safe(name)} \\- {_safe(summary)}"


def _options() -> Iterator[str]:
    yield ".SH GLOBAL OPTIONS"
    for option in OPTIONS:
        variable = f" [{option.environment}]" if option.environment else ""
        yield ".TP"
        names = f"{', '.join(option.names)} {option.value}".rstrip()
        yield f".B {_safe(names)}"
        yield _safe(f"{option.summary}{variable}")


def _safe(text: str) -> str:
    r"""A text as roff shows it: nothing in it is a request or an escape.

    >>> _safe(".x - y\\z 'a'")
    "\\&.x \\- y\\ez \\(aqa\\(aq"
    """
    found = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    found = found.replace("`", r"\(ga").replace("^", r"\(ha").replace("~", r"\(ti")
    return re.sub(r"(?m)^\.", r"\\&.", found)
