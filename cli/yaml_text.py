"""Documents as YAML 1.2: ``-o yaml``. Block style, two spaces, keys in their order.

Plain values (those of JSON) go in, text comes out. A text stands without quotes only where every
reader takes it for that text; otherwise it is written as JSON writes it, which YAML reads, with an
escape for what YAML does not allow.

Not here: which documents there are (``answer``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from cli.answer import dump

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+-]+)*")
_TAKEN = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null|nan|inf")
"""What a reader, of YAML 1.1 too, takes for a value of another kind."""
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def yaml_text(value: object) -> str:
    """Return a value as a YAML text that ends with a line end.

    >>> print(yaml_text({"a": [1, {"b": None, "c": "x: y"}], "d": {}}), end="")
    a:
      - 1
      - b: null
        c: "x: y"
    d: {}
    """
    return "\n".join(_lines(value)) + "\n"


def document(value: object) -> str:
    """Return an answer as one document of a stream; what JSON would write differently is plain."""
    return f"---\n{yaml_text(json.loads(dump(value)))}"


def _lines(value: object) -> Iterator[str]:
    whole = value
    if isinstance(value, Mapping) and value:
        for key, item in cast("Mapping[str, object]", value).items():
            yield from _entry(f"{_text(str(key))}:", item)
    elif isinstance(value, (list, tuple)) and value:
        for item in cast("Sequence[object]", value):
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(whole)


def _entry(head: str, item: object) -> Iterator[str]:
    """One key with its value: beside it, or below it where it has parts."""
    if _has_parts(item):
        yield head
        yield from (f"  {line}" for line in _lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _has_parts(value: object) -> bool:
    return isinstance(value, (Mapping, list, tuple)) and bool(cast("Sequence[object]", value))


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{}"
    return "[]" if isinstance(value, (list, tuple)) else json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _TAKEN.fullmatch(text):
        return text
    return _ODD.sub(lambda odd: f"\\u{ord(odd[0]):04x}", json.dumps(text, ensure_ascii=False))
