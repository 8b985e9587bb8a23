"""What a drill leaves behind: a folder, and one page that opens without a network.

    report.html     verdict, numbers, nodes, operations, offsets, promises with a counter-example
    results.json    the same for machines
    history.jsonl   every operation
    NAME.log        the last lines of each process

`page` makes the page from a `Result`, `stored` reads one back from its folder.

Not here: the pictures (``charts``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from platform import machine, release
from platform import node as host

from cli.answer import rfc3339
from cli.drill import charts
from cli.drill.judge import Example, Finding, Outcome, judge, quantile
from cli.drill.run import Band, Result
from cli.drill.scenario import parse
from cli.drill.watcher import Sighting
from cli.failures import Exit, Failure
from cli.fields import Fields, number, rows, table, tables, text, texts, whole
from cli.history.operations import Operation, load, write

LINES_AROUND = 14
"""Log lines shown for each process around a counter-example."""
SECONDS_AROUND = 2.0

COLOURS = {Outcome.BROKEN: "#b3392f", Outcome.UNKNOWN: "#6b6b6b", Outcome.HELD: "#2e8b57"}
"""The worst first, as the page lists promises."""


def write_result(result: Result, folder: Path) -> None:
    """Write everything into ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "history.jsonl", result.history)
    document = {
        "kind": "DrillResult",
        "version": 1,
        **result.fields(),
        "file": result.scenario.text,
        "nodes": list(result.nodes),
        "began_ms": result.began_ms,
        "twinlog": version("twinlog"),
        "moments": [list(one) for one in result.moments],
        "bands": [[one.begin, one.end, one.text, list(one.targets)] for one in result.bands],
        "sentences": {code: list(said) for code, said in result.sentences.items()},
        "sightings": [
            [one.at, one.node, one.role, one.epoch, one.end, one.flushed, one.confirm]
            for one in result.sightings
        ],
    }
    (folder / "results.json").write_text(json.dumps(document), encoding="utf-8")
    for name, lines in result.logs.items():
        (folder / f"{name}.log").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (folder / "report.html").write_text(page(result), encoding="utf-8")


def stored(folder: Path) -> Result:
    """Read a drill's folder.

    Raises:
        Failure: It is not there (66), or is no drill's folder (65).
    """
    path = folder / "results.json"
    if not path.exists():
        raise Failure(Exit.MISSING, f"{path} does not exist")
    try:
        document = table(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise Failure(Exit.DATA, f"{path} is damaged", facts=(str(error),)) from None
    if document.get("kind") != "DrillResult":
        raise Failure(Exit.DATA, f"{path} is not the result of a drill")
    history = load(folder / "history.jsonl")
    result = _result(document, history)
    result.logs = {
        one.stem: one.read_text(encoding="utf-8", errors="replace").splitlines()
        for one in sorted(folder.glob("*.log"))
    }
    return result


def _result(document: Fields, history: list[Operation]) -> Result:
    scenario = parse(text(document, "file") or "", text(document, "name") or "?")
    moments = moments_of(document)
    found = judge(history, scenario.promises, moments)
    said = {one.promise for one in found.findings}
    others = [_finding(one) for one in tables(document.get("findings"))]
    result = Result(scenario, whole(document, "seed") or 0, history)
    result.moments = moments
    result.errors = {code: n for code, n in table(document.get("errors")).items()
                     if isinstance(n, int)}  # fmt: skip
    result.nodes = tuple(texts(document.get("nodes")))
    result.findings = [*found.findings, *(one for one in others if one.promise not in said)]
    result.counts, result.gaps = found.counts, found.gaps
    result.bands = [
        Band(_float(one[0]) or 0.0, _float(one[1]), str(one[2]), tuple(texts(one[3])))
        for one in rows(document.get("bands"))
        if len(one) == 4
    ]
    result.sightings = [
        Sighting(_float(one[0]) or 0.0, str(one[1]), str(one[2]), *(_whole(v) for v in one[3:7]))
        for one in rows(document.get("sightings"))
        if len(one) == 7
    ]
    result.seconds = number(document, "seconds") or 0.0
    result.began_ms = whole(document, "began_ms") or 0
    return result


def moments_of(document: Fields) -> list[tuple[float, str]]:
    """When which fault began, by a drill's document."""
    found = rows(document.get("moments"))
    return [(_float(one[0]) or 0.0, str(one[1])) for one in found if len(one) == 2]


def _finding(given: Fields) -> Finding:
    return Finding(
        text(given, "promise") or "?",
        Outcome(text(given, "outcome") or "unknown"),
        text(given, "text") or "",
        tuple(Example(one) for one in texts(given.get("examples"))),
    )


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


# ── the page ────────────────────────────────────────────────────────────────────────────────────


def page(result: Result) -> str:
    """The whole page."""
    name = escape(result.scenario.name)
    colour = COLOURS[result.verdict]
    parts = [
        f"<header style='border-color:{colour}'><h1>{name}: {escape(result.scenario.title)}</h1>",
        f"<p class=verdict style='color:{colour}'>{escape(result.headline())}</p></header>",
        *_numbers(result),
        *_counter_example(result),
        _section("Nodes", charts.lanes(result), _roles_key()),
        _section("Sends", charts.operations(result), _outcomes_key()),
        _section("Log offsets", charts.offsets(result), "line: end · dashed: confirmed"),
        *_faults(result),
        *_promises(result),
        *_said(result),
        *_again(result),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>drill {name}: {result.verdict.value}</title><style>{_STYLE}</style></head>\n"
        f"<body>{body}</body></html>\n"
    )


def _section(title: str, inner: str, key: str = "") -> str:
    told = f"<span class=keys>{key}</span>" if key else ""
    return f"<section><h2>{title}{told}</h2>{inner}</section>"


def _roles_key() -> str:
    named = {**charts.ROLES, "other": charts.OTHER_ROLE}
    return "".join(f"<i style='background:{colour}'></i>{role} " for role, colour in named.items())


def _outcomes_key() -> str:
    words = {"ok": "acknowledged", "unknown": "outcome unknown", "fail": "refused"}
    keys = "".join(
        f"<i style='background:{charts.OUTCOMES[one]}'></i>{word} " for one, word in words.items()
    )
    return keys + "<i class=gapkey></i>nothing acknowledged"


def _numbers(result: Result) -> Iterator[str]:
    counts = result.counts
    gaps = [gap.seconds for gap in result.gaps]
    recoveries = [gap.recovery for gap in result.gaps]
    cells = [
        ("acknowledged", str(counts.acknowledged)),
        ("outcome unknown", str(counts.unknown)),
        ("refused", str(counts.refused)),
        ("lost", str(counts.lost)),
        ("doubled, moved or out of order", str(counts.harms)),
        ("write gap, median", _seconds(quantile(gaps, 0.5))),
        ("write gap, longest", _seconds(max(gaps, default=None))),
        ("fault to next write, median", _seconds(quantile(recoveries, 0.5))),
        ("read meanwhile", charts.reads_in_words(result.history)),
    ]
    yield "<section class=numbers>"
    for name, value in cells:
        yield f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"
    yield "</section>"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} s"


def _faults(result: Result) -> Iterator[str]:
    if not result.bands:
        return
    lines = [
        f"<tr><td>{at}</td><td>{band.begin:.2f} s</td>"
        f"<td>{'' if band.end is None else f'{band.end:.2f} s'}</td>"
        f"<td>{escape(band.text)}</td></tr>"
        for at, band in enumerate(sorted(result.bands, key=lambda one: one.begin), 1)
    ]
    head = "<tr><th>#</th><th>from</th><th>to</th><th>what</th></tr>"
    table_ = f"<table>{head}{''.join(lines)}</table>"
    if len(lines) > 12:
        table_ = f"<details><summary>{len(lines)} faults</summary>{table_}</details>"
    yield _section("Faults", table_)


def _promises(result: Result) -> Iterator[str]:
    lines = [
        f"<tr><td style='color:{COLOURS[one.outcome]}'>{one.outcome.value}</td>"
        f"<td>{escape(one.promise)}</td><td>{escape(one.text)}</td></tr>"
        for one in sorted(result.findings, key=lambda one: list(COLOURS).index(one.outcome))
    ]
    yield _section("Promises", f"<table>{''.join(lines)}</table>")


def _counter_example(result: Result) -> Iterator[str]:
    """The first broken promise, and what the processes logged around it."""
    for one in result.findings:
        if one.outcome is Outcome.BROKEN and one.examples:
            example = one.examples[0]
            inner = "".join(f"<p>{escape(each.text)}</p>" for each in one.examples)
            at = example.at if example.at is not None else first_fault(result)
            if at is not None:
                inner += "".join(_logs(result, at))
            yield _section(f"First counter-example: {escape(one.promise)}", inner)
            return


def _said(result: Result) -> Iterator[str]:
    if result.sentences:
        said = sorted(result.sentences.values())
        lines = "".join(f"<tr><td>{at:.2f} s</td><td>{escape(t)}</td></tr>" for at, t in said)
        yield _section("What the status said meanwhile", f"<table>{lines}</table>")


def first_fault(result: Result) -> float | None:
    """When the first fault began."""
    return min((band.begin for band in result.bands), default=None)


_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?")


def _logs(result: Result, at: float) -> Iterator[str]:
    for name, lines in result.logs.items():
        near = nearby(lines, result.began_ms / 1000 + at)
        if near:
            shown = "\n".join(escape(line[:400]) for line in near)
            yield f"<h3>{escape(name)}</h3><pre>{shown}</pre>"


def nearby(lines: Sequence[str], moment: float) -> list[str]:
    """Lines logged within `SECONDS_AROUND` of a moment (seconds since 1970), the nearest ones."""
    found: list[tuple[float, str]] = []
    for line in lines:
        match = _STAMP.search(line)
        if match is None:
            continue
        stamp = match[0].replace(" ", "T").removesuffix("Z") + "+00:00"
        distance = abs(datetime.fromisoformat(stamp).timestamp() - moment)
        if distance <= SECONDS_AROUND:
            found.append((distance, line))
    nearest = {line for _, line in sorted(found)[:LINES_AROUND]}
    return [line for line in lines if line in nearest]


def _again(result: Result) -> Iterator[str]:
    name = escape(result.scenario.name)
    facts = [
        f"<code>twinlog drill run {name} --seed {result.seed} --times {result.scenario.rounds}"
        "</code> does it again; <code>twinlog drill replay FOLDER</code> judges this history "
        "again.",
        f"{escape(rfc3339(result.began_ms))}, {result.seconds:.1f} s, twinlog "
        f"{version('twinlog')}, {escape(host())}, Linux {escape(release())}, {machine()}.",
    ]
    inner = "".join(f"<p>{one}</p>" for one in facts)
    file = f"<details><summary>the drill's file</summary><pre>{escape(result.scenario.text)}</pre>"
    yield _section("Again", inner + file + "</details>")


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fafafa;max-width:1160px;
margin:24px auto;padding:0 20px}
header{border-left:6px solid;padding:2px 0 2px 16px;margin-bottom:18px}
h1{font-size:22px;margin:0}h2{font-size:16px;margin:0 0 8px}h3{font-size:14px;margin:12px 0 4px}
.verdict{font-size:18px;font-weight:600;margin:4px 0}
section{background:#fff;border:1px solid #e3e3e3;border-radius:6px;padding:14px 16px;
margin-bottom:16px}
.numbers{display:grid;grid-template-columns:repeat(auto-fill,minmax(200px,1fr));gap:10px 24px}
.numbers b{display:block;font-size:18px}.numbers span{color:#666;font-size:13px}
.numbers div:last-child{grid-column:span 2}
.keys{font-weight:400;font-size:13px;color:#555;margin-left:16px}
.keys i{display:inline-block;width:11px;height:11px;margin:0 5px 0 12px;border-radius:2px}
.gapkey{background:#f6d5a8}
svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif}
.grid{stroke:#ececec}.tick{fill:#777;text-anchor:middle}.name{text-anchor:end;fill:#444}
.band{fill:#c0392b;opacity:.10}.hit{fill:none;stroke:#c0392b;stroke-width:1.5}
.gap{fill:#f0a030;opacity:.35}.gapname{text-anchor:middle;fill:#8a5200}
.epoch{fill:#fff}.number{fill:#c0392b}
table{border-collapse:collapse}td,th{text-align:left;padding:3px 16px 3px 0;vertical-align:top}
th{color:#666;font-weight:500}pre{overflow-x:auto;background:#f4f4f4;padding:10px;font-size:12px}
code{background:#f0f0f0;padding:1px 4px;border-radius:3px}
"""
