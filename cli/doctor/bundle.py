"""``twinlog debug bundle``: one archive with what someone who helps needs, and nothing secret.

What will be in it is printed first. It holds settings, statuses, metrics, events and logs; no
messages. Settings whose names say that they are secret are left out, and what looks like one in a
log is crossed out. A process that does not answer is named with the reason; the rest is kept. Every
part is bounded by `PART_BYTES_MAX`, the end of a log counts.

Not here: what the findings of ``doctor`` mean (``cli.doctor.checks``).
"""

from __future__ import annotations

import base64
import io
import os
import re
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast
from urllib.parse import urlsplit

from cli.answer import Answer, Table, dump
from cli.cluster.status import fetch_history, status_answer
from cli.cluster.view import ClusterView, NodeView, look
from cli.context import Context
from cli.doctor.doctor import examine
from cli.failures import Exit, Failure
from cli.fields import Fields, table, text, whole
from cli.parsing import PRIVATE
from node.config.cluster import is_loopback
from twinlog.errors import TwinlogError
from twinlog.session.routing import Address

if TYPE_CHECKING:
    from node.config.config import ClusterConfig
    from twinlog.session.tls_files import Tls

PART_BYTES_MAX = 2 << 20
"""Of one part; of a log its end."""
HTTP_SECONDS = 5.0
"""What one question to a node's HTTP port may take."""
METRICS_SECONDS = 1.0
"""Between the two looks at the metrics: rates need two."""
LOGS_MAX = 20
"""Logs of ``dev``, the newest."""

SECRET = re.compile(r"(?i)passw|secret|token|private|passphrase|credential|(^|[._])key$")
"""Names of settings that are not told."""
_TOLD = re.compile(
    r"(?i)((?:passw\w*|secret|token|passphrase)[\"']?\s*[=:]\s*)"
    r"(?:(\")(?:[^\"\\]|\\.)*\"?|(')(?:[^'\\]|\\.)*'?|[^\s\"',}]+)"
)
HIDDEN = "(not told)"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the archive: its name, what it is, and how its bytes are got."""

    name: str
    what: str
    read: Callable[[], str]


def bundle(
    file: Path | None = None, *, dry_run: bool = False, context: Annotated[Context, PRIVATE]
) -> int:
    """Collect what someone who helps needs, in one archive; no messages, nothing secret.

    What it will hold is printed first. Names of topics and groups are in it. A process that does
    not answer is named in ``manifest.json``; the archive is made all the same.

    Args:
        file: Where to; default ``twinlog-debug-TIME.tar.gz`` here. An existing file is not touched.
        dry_run: Only say what it would hold.
    """
    now = datetime.fromtimestamp(context.wall_ms() / 1000, UTC)
    path = file or Path(f"twinlog-debug-{now:%Y%m%d-%H%M%S}.tar.gz")
    view = _view(context)
    parts = list(_parts(context, view))
    for part in parts:
        context.printer.note(f"  {part.name:28} {part.what}")
    if dry_run:
        planned: list[Fields] = [
            {"part": one.name, "what": one.what, "bytes": None, "why": None} for one in parts
        ]
        return _answer(context, path, planned, written=False)
    if path.exists():
        hints = ("name another: twinlog debug bundle FILE",)
        raise Failure(Exit.NO, f"{path} exists already; it was not touched", hints=hints)
    told = view.text if isinstance(view, Failure) else True
    items = _write(path, parts, {"made": now.isoformat(), "cluster": told})
    return _answer(context, path, items, written=True)


def _answer(context: Context, path: Path, items: list[Fields], *, written: bool) -> int:
    missing = [str(one["part"]) for one in items if one["why"]]
    head = f"wrote {path}" if written else f"{path} would hold:"
    context.printer.answer(
        Answer(
            kind="DebugBundle",
            fields={"file": str(path), "written": written, "parts": items, "missing": missing},
            head=head,
            tables=[Table.of("PART BYTES>=bytes:size WHAT +WHY", items)],
            tail=f"not in it: {', '.join(missing)}" if missing else "",
            items=items,
            names=[str(path)],
        )
    )
    return Exit.OK


def _view(context: Context) -> ClusterView | Failure:
    try:
        return look(context)
    except Failure as failure:
        return failure


def _write(path: Path, parts: list[Part], facts: Mapping[str, object]) -> list[Fields]:
    """Write the archive, for its owner only; the manifest names parts that cannot be had.

    What is interrupted leaves no file.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        text = f"cannot write {path}: {error.strerror}"
        raise Failure(Exit.MISSING, text, hints=("name a file in a folder of yours",)) from None
    try:
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            return _pack(archive, parts, facts)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _pack(archive: tarfile.TarFile, parts: list[Part], facts: Mapping[str, object]) -> list[Fields]:
    items: list[Fields] = []
    for part in parts:
        item: Fields = {"part": part.name, "what": part.what, "bytes": None, "why": None}
        try:
            data = part.read().encode("utf-8", "replace")[-PART_BYTES_MAX:]
        except (TwinlogError, Failure, OSError, HTTPException, ValueError) as error:
            item["why"] = getattr(error, "text", "") or str(error) or type(error).__name__
        else:
            item["bytes"] = len(data)
            _add(archive, part.name, data)
        items.append(item)
    manifest = dump({"kind": "DebugManifest", "version": 1, **facts, "parts": items})
    _add(archive, "manifest.json", manifest.encode())
    return items


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(f"twinlog-debug/{name}")
    info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
    archive.addfile(info, io.BytesIO(data))


def _parts(context: Context, view: ClusterView | Failure) -> Iterator[Part]:
    yield Part("doctor.json", "what doctor finds here", lambda: _findings(context))
    config = _config(context)
    if config is not None:
        yield Part("settings.json", "settings and their origin", lambda: _settings(config))
    if isinstance(view, Failure):
        yield Part("cluster.json", "cluster status", partial(_raise, view))
    else:
        status = status_answer(view, context.wall_ms())
        yield Part("cluster.json", "cluster status", lambda: dump(hidden(status.document())))
        state = view.coordinator.state
        yield Part("coordinator.json", "the group state", lambda: dump(hidden(state)))
        yield Part("history.json", "who was master", lambda: dump(fetch_history(context)))
        for node in view.nodes:
            yield from _of_node(node, context.tls())
    if config is not None:
        logs = sorted(
            (config.path.parent / "dev").glob("*.log"), key=lambda log: -log.stat().st_mtime
        )
        for log in sorted(logs[:LOGS_MAX]):
            yield Part(f"logs/{log.name}", "the end of a log", partial(_end, log))


def _raise(failure: Failure) -> str:
    raise failure


def _of_node(node: NodeView, tls: Tls | None) -> Iterator[Part]:
    """What is asked of one node; one that is away has its reason in ``cluster.json``."""
    if not node.reachable:
        return
    place, document = f"nodes/{node.name}", node.document
    yield Part(f"{place}/status.json", "its status", lambda: dump(hidden(document)))
    url = _http(node, secure=tls is not None and bool(tls.authority))
    if url is None:
        return

    def get(path: str, until: str = "\0") -> str:
        return fetched(f"{url}/{path}", until, tls=tls)

    def again() -> str:
        time.sleep(METRICS_SECONDS)
        return get("metrics")

    yield Part(f"{place}/metrics-1.txt", "its metrics", lambda: get("metrics"))
    yield Part(f"{place}/metrics-2.txt", "the same a second later", again)
    yield Part(f"{place}/groups.json", "its groups", lambda: get("groups"))
    events = "its newest events"
    yield Part(f"{place}/events.txt", events, lambda: get("events", "event: cluster"))


def _http(node: NodeView, *, secure: bool) -> str | None:
    addresses = table(node.document.get("addresses"))
    host, port = text(addresses, "host"), whole(addresses, "http_port")
    if not host or not port:
        return None
    return f"http{'s' * secure}://{Address(host, port)}"


def fetched(url: str, until: str = "\0", *, tls: Tls | None = None) -> str:
    """What a path of a node's HTTP port answers, up to a line; at most `PART_BYTES_MAX`.

    Raises:
        OSError, HTTPException: It does not answer.
    """
    lines: list[str] = []
    size = 0
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None and tls.authority:
        from twinlog.session.tls import client_context

        handlers.append(urllib.request.HTTPSHandler(context=client_context(tls)))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url)
    # HTTP Basic shows the password itself: never in clear beyond this machine.
    shown = url.startswith("https:") or is_loopback(urlsplit(url).hostname or "")
    if shown and tls is not None and tls.login is not None:
        said = f"{tls.login.user}:{tls.login.password}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(said).decode()}")
    with opener.open(request, timeout=HTTP_SECONDS) as answer:
        while size < PART_BYTES_MAX and (line := answer.readline(PART_BYTES_MAX)):
            found = line.decode("utf-8", "replace")
            if found.rstrip() == until:
                break
            lines.append(found)
            size += len(line)
    return crossed_out("".join(lines))


def _findings(context: Context) -> str:
    return dump([finding.fields() for finding in examine(context)])


def _config(context: Context) -> ClusterConfig | None:
    try:
        return None if context.options.endpoints else context.config()
    except Failure:
        return None


def _settings(config: ClusterConfig) -> str:
    values: Fields = {}
    for name, value in config.values.items():
        told = HIDDEN if SECRET.search(name) and value else value
        values[name] = {"value": told, "origin": str(config.origins.get(name, "default"))}
    return dump({"file": str(config.path), "settings": values})


def _end(log: Path) -> str:
    with log.open("rb") as file:
        if file.seek(0, os.SEEK_END) > PART_BYTES_MAX:
            file.seek(-PART_BYTES_MAX, os.SEEK_END)
            file.readline()  # the rest of a line, whose beginning may say that a secret follows
        else:
            file.seek(0)
        return crossed_out(file.read(PART_BYTES_MAX).decode("utf-8", "replace"))


def crossed_out(words: str) -> str:
    """A text in which what follows ``password=`` and the like is crossed out, quoted or a word.

    >>> crossed_out('user=a password="x y" token: abc')
    'user=a password="(not told)" token: (not told)'
    """

    def crossed(found: re.Match[str]) -> str:
        quote = found[2] or found[3] or ""
        return f"{found[1]}{quote}{HIDDEN}{quote}"

    return _TOLD.sub(crossed, words)


def hidden(value: object) -> object:
    """A document without the values whose names say that they are secret."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {
            key: HIDDEN if SECRET.search(str(key)) and isinstance(one, (str, list)) else hidden(one)
            for key, one in items
        }
    if isinstance(value, (list, tuple)):
        return [hidden(one) for one in cast("list[object]", value)]
    return value
