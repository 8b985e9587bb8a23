"""Messages as text: the ``--format`` grammar, the default line, the JSON object.

    %t topic   %q queue   %o queue offset   %O log offset   %k key   %g tag   %v body
    %h headers %d time    %s size           %n newline      %% percent
    modifiers in braces: %v{hex} %v{base64} %v{json} %d{iso} %d{unix}

A body is bytes; as text it is shown as UTF-8 with replacements for invalid bytes, so output never
breaks; ``hex`` and ``base64`` are exact.  Times are milliseconds since 1970.  Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cli.answer import rfc3339
from cli.failures import Exit, Failure
from twinlog.format.messages import Message

FIELD = re.compile(r"%(?:([%a-zA-Z])(?:\{([a-z0-9]*)\})?)?")

SYSTEM_PROPERTIES = frozenset({"KEYS", "TAGS", "UNIQ_KEY", "TL_SEQ", "WAIT", "__SHARDINGKEY"})
"""Properties that have a place of their own and are no headers."""


def headers(message: Message) -> dict[str, str]:
    """The properties a producer set besides key and tag."""
    return {k: v for k, v in message.properties.items() if k not in SYSTEM_PROPERTIES}


def as_fields(message: Message) -> dict[str, object]:
    """A message as a JSON object; a body that is no UTF-8 comes as ``body_base64``."""
    fields: dict[str, object] = {
        "kind": "Message",
        "version": 1,
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "key": message.key,
        "tag": message.tag,
        "headers": headers(message),
        "born": rfc3339(message.born_timestamp),
        "stored": rfc3339(message.store_timestamp),
    }
    try:
        fields["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode("ascii")
    return fields


@dataclass(frozen=True, slots=True)
class Format:
    """A parsed ``--format``."""

    parts: tuple[str | Callable[[Message], str], ...]

    def __call__(self, message: Message) -> str:
        """The message as text; no line end is added."""
        return "".join(part if isinstance(part, str) else part(message) for part in self.parts)


def parse_format(text: str) -> Format:
    r"""Read a format; ``\n`` and ``\t`` are understood, as shells pass them on literally.

    Raises:
        Failure: A letter or modifier that the grammar does not have (exit 64).
    """
    plain = text.replace("\\n", "\n").replace("\\t", "\t")
    parts: list[str | Callable[[Message], str]] = []
    at = 0
    for match in FIELD.finditer(plain):
        if match.start() > at:
            parts.append(plain[at : match.start()])
        parts.append(_part(match[1] or "", match[2] or ""))
        at = match.end()
    if at < len(plain):
        parts.append(plain[at:])
    return Format(tuple(parts))


def _part(letter: str, modifier: str) -> str | Callable[[Message], str]:
    if (letter, modifier) in _FIXED:
        return _FIXED[letter, modifier]
    found = _FIELDS.get((letter, modifier))
    if found is None:
        word = f"%{letter}" + (f"{{{modifier}}}" if modifier else "")
        raise Failure(
            Exit.USAGE,
            f'--format has "{word}", which means nothing',
            facts=("known are %t %q %o %O %k %g %v %h %d %s %n %% and",
                   "%v{hex} %v{base64} %v{json} %d{iso} %d{unix}"),
        )  # fmt: skip
    return found


_FIXED = {("n", ""): "\n", ("%", ""): "%"}
_FIELDS: Mapping[tuple[str, str], Callable[[Message], str]] = {
    ("t", ""): lambda m: m.topic,
    ("q", ""): lambda m: str(m.queue),
    ("o", ""): lambda m: str(m.queue_offset),
    ("O", ""): lambda m: str(m.log_offset),
    ("k", ""): lambda m: m.key or "",
    ("g", ""): lambda m: m.tag or "",
    ("v", ""): lambda m: m.body.decode("utf-8", "replace"),
    ("v", "hex"): lambda m: m.body.hex(),
    ("v", "base64"): lambda m: base64.b64encode(m.body).decode("ascii"),
    ("v", "json"): lambda m: json.dumps(m.body.decode("utf-8", "replace"), ensure_ascii=False),
    ("h", ""): lambda m: ",".join(f"{k}={v}" for k, v in sorted(headers(m).items())),
    ("d", ""): lambda m: rfc3339(m.store_timestamp),
    ("d", "iso"): lambda m: rfc3339(m.store_timestamp),
    ("d", "unix"): lambda m: f"{m.store_timestamp / 1000:.3f}",
    ("s", ""): lambda m: str(len(m.body)),
}
