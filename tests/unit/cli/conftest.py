"""Every document that a command prints in these tests is as its schema says.

With ``TWINLOG_REWRITE_SCHEMAS=1`` the schemas are widened by what is printed instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import cli.app
from cli.answer import Answer, dump
from cli.render import Printer
from tests.fixtures import answer_schemas

REWRITE = bool(os.environ.get("TWINLOG_REWRITE_SCHEMAS"))


@cache
def validator(command: str, kind: str) -> Draft202012Validator:
    """What checks documents of a kind; the command must be known to print it."""
    found = answer_schemas.read()
    hint = f"{command} prints {kind}, of which there is no schema: TWINLOG_REWRITE_SCHEMAS=1"
    assert kind in found["commands"].get(command, ()), hint
    return Draft202012Validator(found["kinds"][kind])


@pytest.fixture(autouse=True)
def documents_fit_their_schemas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look at each answer and each item of a stream before it is printed."""
    running: list[str] = []
    wrong: list[str] = []
    find, answer, item = cli.app.find, Printer.answer, Printer.item

    def found(words: list[str]) -> object:
        command, rest = find(words)
        running[:] = [command.name] if command is not None else []
        return command, rest

    def look(document: Any, measures: Mapping[str, str]) -> None:
        if not running:  # a function that is called without the command line
            return
        document = json.loads(dump(document))
        if REWRITE:
            schemas = answer_schemas.read()
            answer_schemas.add(schemas, running[0], document, measures)
            answer_schemas.write(schemas)
            return
        for error in validator(running[0], document["kind"]).iter_errors(document):
            wrong.append(f"{document['kind']}{error.json_path[1:]}: {error.message}")

    def answered(printer: Printer, given: Answer) -> None:
        heads = [head for table in given.tables for head in table.columns if head.kind]
        look(given.document(), {head.field.rpartition(".")[2]: head.kind for head in heads})
        answer(printer, given)

    def streamed(printer: Printer, value: Mapping[str, object]) -> None:
        look(value, {})
        item(printer, value)

    patches: list[tuple[str, Callable[..., object]]] = [
        ("cli.app.find", found),
        ("cli.render.Printer.answer", answered),
        ("cli.render.Printer.item", streamed),
    ]
    for target, function in patches:
        monkeypatch.setattr(target, function)
    yield
    assert not wrong, "\n".join(wrong)
