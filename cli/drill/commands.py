"""``twinlog drill``: list, show, run, report and replay.

A drill is rehearsed on a cluster of its own, in a temporary directory of this machine, unless
``--cluster`` names another one.  Exit codes: 0 every promise held, 1 one was broken, 2 the drill
cannot tell.

Not here: what a drill does (``run``), the shipped ones (``scenarios/``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Seconds, Table
from cli.context import Context
from cli.drill.judge import Finding, Judgement, Outcome, judge
from cli.drill.report import moments_of, page, stored, write_result
from cli.drill.run import Drill, Result, not_begun
from cli.drill.scenario import KINDS, Promises, Scenario, find, parse, shipped
from cli.drill.side_by_side import run_side_by_side
from cli.drill.stage import NamedStage, OwnStage
from cli.failures import NOTHING_LEFT, Exit, Failure, Interrupted, undisturbed
from cli.fields import table, text
from cli.history.operations import load
from cli.parsing import PRIVATE, Yes
from twinlog.units import parse_duration

ALL = "all"
TOPIC = "drill"
FOLDER = Path("drills")
"""Where reports go unless told otherwise."""
LOG_LINES = 4000
"""Lines of each process that a result keeps, the last ones."""
ROUND_SECONDS = 30.0
"""What each round of ``--times`` adds to a drill's limit."""
ALL_SECONDS = 25 * 60.0
"""How long ``drill run all`` may take; drills that have no time left are undecided."""


def list_drills(*, context: Annotated[Context, PRIVATE]) -> int:
    """List the drills that come with twinlog."""
    found = [find(name) for name in shipped()]
    items: list[dict[str, object]] = [
        {
            "name": one.name,
            "title": one.title,
            "seconds": round(one.seconds),
            "faults": sorted({fault.do for fault in one.faults}),
        }
        for one in found
    ]
    context.printer.answer(
        Answer(
            kind="DrillList",
            fields={"drills": items},
            tables=[Table.of("NAME ABOUT>=seconds:seconds TITLE +FAULTS", items)],
            items=items,
            names=[one.name for one in found],
            next=f"twinlog drill run {found[0].name}",
        )
    )
    return Exit.OK


def show(name: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Show what a drill does, what it promises, and its file.

    Args:
        name: Of a shipped drill, or a file.
    """
    found = scenario_of(name)
    lines = [found.title, "", *found.about.splitlines()]
    items: list[dict[str, object]] = [
        {"fault": fault.text(), "means": KINDS[fault.do].about} for fault in found.faults
    ]
    context.printer.answer(
        Answer(
            kind="Drill",
            fields={
                "name": found.name,
                "title": found.title,
                "about": found.about,
                "seconds": round(found.seconds),
                "faults": items,
                "file": found.text,
            },
            head="\n".join(lines).strip() + "\n",
            tables=[Table.of("FAULT MEANS", items)],
            tail="\n" + found.text.strip(),
            items=items,
            names=[found.name],
            next=f"twinlog drill run {name}",
        )
    )
    return Exit.OK


def scenario_of(name: str) -> Scenario:
    """A shipped drill, or the one in a file.

    Raises:
        Failure: There is no such drill (66), or its file has mistakes (78).
    """
    path = Path(name)
    if path.suffix != ".toml":
        return find(name)
    if not path.is_file():
        raise Failure(Exit.MISSING, f"{path} does not exist")
    return parse(path.read_text(encoding="utf-8"), path.stem)


def run(
    name: str,
    /,
    *,
    times: int | None = None,
    jobs: int = 2,
    seed: int = 1,
    cluster: Path | None = None,
    report_: Path | None = None,
    keep: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Run a drill, or all of them, and say whether every promise held.

    Exit 0: all held. 1: one was broken. 2: the drill cannot tell.

    Args:
        name: Of a shipped drill, a file, or all.
        times: How often its faults happen, each time in a healthy cluster; default: its file.
        jobs: How many drills at a time, for all.
        seed: For what is drawn by chance.
        cluster: The file of a running cluster to rehearse on, instead of one of its own. It says
            what may break there and asks.
        report_: Folder of the report; default drills/NAME-TIME.
        keep: Leave the files of its own cluster where they are.
        yes: Do not ask.
    """
    if times is not None and times < 1:
        raise Failure(Exit.USAGE, f"--times is {times}; it can be 1 or more")
    if name == ALL:
        if cluster is not None:
            hint = "name one: twinlog drill list"
            raise Failure(Exit.USAGE, "all drills need clusters of their own", hints=(hint,))
        words = _words(times, seed, keep=keep)
        return _all(words, times, report_, context, jobs=max(1, jobs))
    scenario = _repeated(scenario_of(name), times)
    folder = _folder(report_, scenario.name, several=False)
    result = _one(scenario, cluster, seed, context, keep=keep, yes=yes)
    if result is None:
        return Exit.NO
    write_result(result, folder)
    context.printer.answer(answer_of(result, folder))
    return result.exit


def _words(times: int | None, seed: int, *, keep: bool) -> list[str]:
    """The options of each drill of all."""
    again = [] if times is None else ["--times", str(times)]
    return [*again, "--seed", str(seed), *(["--keep"] if keep else [])]


def _all(
    words: list[str], times: int | None, report_: Path | None, context: Context, *, jobs: int
) -> int:
    """Run the shipped drills side by side, and say what came of each."""
    scenarios = [_repeated(scenario_of(one), times) for one in shipped()]
    drills = {_folder(report_, one.name, several=True): one for one in scenarios}
    say = _sayer(context)
    results = run_side_by_side(drills, words, jobs=jobs, seconds=ALL_SECONDS, say=say)
    missing = len(drills) - len(results)
    context.printer.answer(_summary(results, missing))
    return _together([result.exit for result, _ in results], missing)


def _repeated(scenario: Scenario, times: int | None) -> Scenario:
    if times is None:
        return scenario
    again = replace(scenario, rounds=times)
    return replace(again, limit=scenario.limit + times * ROUND_SECONDS)


def _together(exits: list[Exit], missing: int) -> Exit:
    if Exit.NO in exits:
        return Exit.NO
    return Exit.UNDECIDED if missing or Exit.UNDECIDED in exits else Exit.OK


def _folder(given: Path | None, name: str, *, several: bool) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    if given is None:
        return FOLDER / f"{name}-{stamp}"
    return given / name if several else given


def _one(
    scenario: Scenario,
    cluster: Path | None,
    seed: int,
    context: Context,
    *,
    keep: bool,
    yes: bool,
) -> Result | None:
    """Run one drill; None when a person said no."""
    seconds = f"about {scenario.seconds:.0f} s"
    context.printer.note(f"{scenario.name}: {scenario.title} ({seconds})")
    if cluster is not None:
        return _named(scenario, cluster, seed, context, yes=yes)
    stage = OwnStage(context, scenario, seed)
    try:
        try:
            stage.start()
        except Failure as failure:
            return _logged(not_begun(scenario, seed, failure), stage)
        drill = Drill(scenario, stage, topic=TOPIC, seed=seed, say=_sayer(context))
        return _logged(drill.run(), stage)
    except KeyboardInterrupt:
        raise Interrupted(NOTHING_LEFT) from None
    finally:
        with undisturbed():
            stage.close(remove=not keep)
        if keep:
            context.printer.note(f"its files: {stage.directory}")


def _named(
    scenario: Scenario, cluster: Path, seed: int, context: Context, *, yes: bool
) -> Result | None:
    """Run one drill on a cluster that is there.

    Raises:
        Failure: A fault cannot be done there (exit 64), or there is no terminal to ask at.
    """
    options = replace(context.options, config=cluster, endpoints=(), timeout=None)
    stage = NamedStage(replace(context, options=options))
    reasons = [why for fault in scenario.faults if (why := stage.impossible(fault))]
    if reasons:
        raise Failure(
            Exit.USAGE,
            f"{scenario.name} cannot be rehearsed on {stage.name}",
            facts=sorted(set(reasons)),
            hints=("run it on a cluster of its own: leave --cluster out",),
        )
    topic = f"{TOPIC}-{time.strftime('%Y%m%d-%H%M%S')}"
    for line in stage.breaks(scenario, topic):
        context.printer.note(line)
    if not context.confirm(f"Rehearse {scenario.name} on {stage.name}?", yes=yes):
        return None
    drill = Drill(scenario, stage, topic=topic, seed=seed, say=_sayer(context))
    try:
        return _logged(drill.run(), stage)
    except KeyboardInterrupt:
        with undisturbed():
            drill.take_back()
        raise Interrupted((f"{stage.name} runs on as before, with the topic {topic}",)) from None


def _sayer(context: Context) -> Callable[[str], None]:
    return lambda line: context.printer.note(line)


def _logged(result: Result, stage: OwnStage | NamedStage) -> Result:
    for name, path in stage.logs().items():
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            result.logs[name] = lines[-LOG_LINES:]
    return result


def answer_of(result: Result, folder: Path) -> Answer:
    """One drill's answer."""
    path = folder / "report.html"
    items = [one.fields() for one in result.findings]
    more = _examples(result.findings)
    return Answer(
        kind="DrillRun",
        fields={**result.fields(), "report": str(path)},
        head=f"\n{result.scenario.name}: {result.headline()}\n",
        tables=[Table.of("PROMISE OUTCOME TEXT", items)],
        tail=f"{more}\nreport: {path}",
        items=items,
        names=[str(path)],
    )


def _examples(findings: list[Finding]) -> str:
    lines = [
        f"  {example.text}"
        for one in findings
        if one.outcome is Outcome.BROKEN
        for example in one.examples[:1]
    ]
    return "".join(f"\n{line}" for line in lines)


def _summary(results: list[tuple[Result, Path]], missing: int) -> Answer:
    items: list[dict[str, object]] = [
        {
            "name": result.scenario.name,
            "verdict": result.verdict.value,
            "seconds": round(result.seconds, 1),
            "acknowledged": result.counts.acknowledged,
            "lost": result.counts.lost,
            "write_gap_max": result.longest(),
            "headline": result.headline(),
            "report": str(folder / "report.html"),
        }
        for result, folder in results
    ]
    rows = [{**one, "took": Seconds(result.seconds)} for one, (result, _) in zip(items, results)]
    return Answer(
        kind="DrillRuns",
        fields={"drills": items, "not_run": missing},
        tables=[
            Table.of(
                "NAME VERDICT TOOK> ACKNOWLEDGED> LOST> WRITE-GAP>=write_gap_max:seconds +HEADLINE "
                "+REPORT",
                rows,
            )
        ],
        tail=f"{missing} had no time left" if missing else "",
        items=items,
        names=[str(one["report"]) for one in items],
    )


def report(folder: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Write the page of a drill again from its folder.

    Args:
        folder: What drill run wrote: results.json, history.jsonl and the logs.
    """
    result = stored(folder)
    (folder / "report.html").write_text(page(result), encoding="utf-8")
    context.printer.answer(answer_of(result, folder))
    return result.exit


def replay(
    file: Path,
    /,
    *,
    write_gap: Annotated[str | None, Parameter(name="--write-gap")] = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Judge a stored history again: lost, doubled, moved, out of order, never sent.

    Exit 0: nothing of that. 1: something. 2: it does not say, for example because no queue was
    read to its end.

    Args:
        file: A history.jsonl, or the folder of a drill.
        write_gap: Longest time without an acknowledgement that is allowed, like 10s.
    """
    path = file / "history.jsonl" if file.is_dir() else file
    history = load(path)
    promises, moments, name = Promises(), list[tuple[float, str]](), path.stem
    results = path.parent / "results.json"
    if results.exists():
        document = table(json.loads(results.read_text(encoding="utf-8")))
        name, moments = text(document, "name") or name, moments_of(document)
        promises = parse(text(document, "file") or "", name).promises
    if write_gap is not None:
        promises = replace(promises, write_gap_max=parse_duration(write_gap))
    found = judge(history, promises, moments)
    context.printer.answer(_replayed(path, name, found))
    return {
        Outcome.HELD: Exit.OK, Outcome.BROKEN: Exit.NO, Outcome.UNKNOWN: Exit.UNDECIDED,
    }[found.outcome]  # fmt: skip


def _replayed(path: Path, name: str, found: Judgement) -> Answer:
    items = [one.fields() for one in found.findings]
    counts = {key: getattr(found.counts, key) for key in found.counts.__slots__}
    return Answer(
        kind="DrillReplay",
        fields={
            "file": str(path),
            "name": name,
            "verdict": found.outcome.value,
            "findings": items,
            **counts,
        },
        head=f"{path}: {found.outcome.value}; {found.counts.acknowledged} acknowledged\n",
        tables=[Table.of("PROMISE OUTCOME TEXT", items)],
        tail=_examples(list(found.findings)),
        items=items,
        names=[found.outcome.value],
    )
