"""Pages of ``docs/`` that are rendered from the code.

``python -m tests.tidy.generate`` writes them. `PAGES` maps a file of ``docs/`` to the function that
renders it; a test compares each with what lies there and fails when they differ, so a page cannot
disagree with the program.

Not here: the texts themselves. They stand with the models, tables and docstrings they describe.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from cli.failures import EXITS
from cli.help import pages as cli_help
from cli.help import schemas
from node.config import pages
from node.observe import logs, metrics
from replication.core.roles import MASTER_SESSION, ROLES, SLAVE_SESSION, diagrams
from twinlog.spark.plan import columns, options

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_ABOUT_MACHINES: Mapping[str, str] = {
    ROLES.name: "What a node is. Every process begins fenced; only a new epoch makes a master.",
    MASTER_SESSION.name: "What a master does with one slave, over one link.",
    SLAVE_SESSION.name: "What a slave does with its master, over one link.",
}


def exit_codes() -> str:
    """Render ``docs/exit-codes.md``: every exit code, when it is used, what a script may do."""
    lines = [
        "# Exit codes",
        "",
        "The same table is printed by `twinlog help exit`.",
        "",
        "| exit | name | when | a script may |",
        "|---|---|---|---|",
    ]
    for code, (when, may) in sorted(EXITS.items()):
        lines.append(f"| {int(code)} | {code.name.lower()} | {when} | {may} |")
    return "\n".join([*lines, ""])


def state_machines() -> str:
    """Render ``docs/state-machines.md``: a diagram of every transition table."""
    lines = [
        "# State machines",
        "",
        "Drawn from the tables in `replication/core/roles.py`. A move that a table does not have",
        "must not happen: the node stops.",
    ]
    for name, drawn in diagrams().items():
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", _ABOUT_MACHINES[name]]
        lines += ["", "```mermaid", drawn.rstrip("\n"), "```"]
    return "\n".join([*lines, ""])


def folders() -> str:
    """Render ``docs/folders.md``: every folder of the source, and what its package says it is."""
    lines = [
        "# Folders",
        "",
        "The first sentence of each package. Imports point from `cli` down to `twinlog`;",
        "`.importlinter` has the order of the folders inside a package.",
        "",
        "| folder | what is in it |",
        "|---|---|",
    ]
    for top in ("cli", "node", "replication", "storage", "twinlog"):
        for front in sorted((ROOT / top).rglob("__init__.py")):
            said = ast.get_docstring(ast.parse(front.read_text(encoding="utf-8"))) or ""
            sentence = re.split(r"(?<=\.)(?:\s|$)", said.replace("\n", " "), maxsplit=1)[0]
            folder = front.parent.relative_to(ROOT).as_posix()
            lines.append(f"| `{folder}/` | {sentence.replace('``', '`').replace('|', '/')} |")
    return "\n".join([*lines, ""])


def answers() -> str:
    """Render ``docs/answers.md``: what each command prints with ``-o json``."""
    found = schemas.content()
    lines = [
        "# Answers for programs",
        "",
        "With `-o json` a command prints one document with `kind` and `version`; with `-o schema`",
        "its JSON Schema, without running. Within a version fields are only added: let unknown",
        "ones pass. A plain value may be `null`: it does not apply. Errors are documents of kind",
        "`Error` on stderr.",
        "",
        "| command | kinds |",
        "|---|---|",
    ]
    for command, kinds in sorted(found["commands"].items()):
        lines.append(f"| `{command}` | {', '.join(f'`{kind}`' for kind in kinds)} |")
    lines += ["", "| kind | fields; those in brackets may be missing |", "|---|---|"]
    for kind, schema in sorted(found["kinds"].items()):
        always = set(schema["required"])
        named = sorted(set(schema["properties"]) - {"kind", "version"})
        fields = [f"`{name}`" if name in always else f"[`{name}`]" for name in named]
        lines.append(f"| `{kind}` | {', '.join(fields)} |")
    return "\n".join([*lines, ""])


PAGES: Mapping[str, Callable[[], str]] = {
    "answers.md": answers,
    "cli.md": cli_help.reference,
    "events.md": logs.reference,
    "exit-codes.md": exit_codes,
    "folders.md": folders,
    "metrics.md": metrics.reference,
    "settings.md": pages.reference,
    "spark/columns.md": columns.reference,
    "spark/options.md": options.reference,
    "state-machines.md": state_machines,
}
"""Every generated page: its name in ``docs/`` and what renders it."""


def current(name: str) -> str:
    """Return what lies in ``docs/``; empty when there is no such file."""
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write() -> list[str]:
    """Write the pages that differ and return their names."""
    written: list[str] = []
    for name, render in PAGES.items():
        text = render()
        if text != current(name):
            (DOCS / name).write_text(text, encoding="utf-8")
            written.append(name)
    return written


if __name__ == "__main__":
    for changed in write():
        print(f"docs/{changed}")
