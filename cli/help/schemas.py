"""`-o schema`: the JSON Schema of what a command prints with ``-o json``, without running it.

The schemas lie beside this module, in ``schemas.json``. They are made of what the commands printed
in the tests (``tests/fixtures/answer_schemas.py``), and every document that a test prints is
checked against them. Within a version of a document fields are only added, so a reader must let
unknown ones pass; a plain value may be null, which says that it does not apply.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from cli.failures import Exit, Failure

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def content() -> dict[str, dict[str, Any]]:
    """Return the file: ``kinds`` by name, and in ``commands`` the kinds that each one prints."""
    text = files(__package__ or "cli.help").joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def schema_of(command: str) -> dict[str, object]:
    """Return the schema of a command's documents; several kinds as ``anyOf``.

    Raises:
        Failure: It prints no document, or its schema is not known.
    """
    found = content()
    kinds: list[str] = found["commands"].get(command, [])
    if not kinds:
        raise Failure(
            Exit.USAGE,
            f"{command} has no schema",
            facts=("it prints no document, or one of which only kind and version are promised",),
            hints=("commands with a schema: see docs/answers.md",),
        )
    about = {"$schema": DIALECT, "title": f"twinlog {command} -o json"}
    schemas = [{"title": kind, **found["kinds"][kind]} for kind in kinds]
    return {**about, **schemas[0], "title": kinds[0]} if len(kinds) == 1 else {
        **about, "anyOf": schemas,
    }  # fmt: skip
