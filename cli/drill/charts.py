"""The pictures of a drill as SVG: lanes of the nodes, every operation, offsets over time.

All share one time axis and the bands of the faults.  Nothing is loaded from anywhere, and no script
runs: what a mark means stands in its ``<title>``, which browsers show on hover.

Pure.  Not here: the page around them (``report``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise

from cli.drill.judge import Gap
from cli.drill.run import Band, Result
from cli.drill.watcher import Sighting
from cli.history.operations import Operation

WIDTH = 1120
LEFT, RIGHT = 96, 24
LANE = 30
DOTS_MAX = 6000
"""Dots of one outcome; beyond that every n-th is drawn, and the page says so."""

ROLES = {
    "master": "#2f6fb3",
    "slave": "#a9c8e6",
    "unreachable": "#d8d8d8",
    "quarantined": "#b3392f",
}
OTHER_ROLE = "#e8dcb5"
OUTCOMES = {"ok": "#2e8b57", "unknown": "#e08a00", "fail": "#c0392b"}
LINES = (
    "#2f6fb3",
    "#2e8b57",
    "#8e5bb5",
    "#b3702f",
    "#4a4a4a",
    "#b3392f",
    "#1f9e9e",
    "#888",
    "#333",
)


class Axis:
    """Seconds to pixels."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, 0.001)

    def x(self, at: float) -> float:
        """Where a moment is."""
        share = min(1.0, max(0.0, at / self.seconds))
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def ticks(self) -> Iterator[float]:
        """Round moments, at most about twelve."""
        step = nice(self.seconds / 10)
        for number in range(int(self.seconds / step) + 1):
            yield round(number * step, 6)

    def drawn(self, top: int, bottom: int) -> str:
        """Grid lines with their seconds below."""
        parts: list[str] = []
        for at in self.ticks():
            x = self.x(at)
            parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 15}">{at:g} s</text>')
        return "".join(parts)


def nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten.

    >>> nice(0.7), nice(3), nice(12)
    (1.0, 5.0, 20.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 2, 5, 10) if value <= m * power), 10 * power)


def svg(height: int, parts: Iterable[str], label: str) -> str:
    """One picture."""
    inner = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{inner}</svg>'
    )


def bands(result: Result, axis: Axis, top: int, bottom: int, *, named: bool) -> Iterator[str]:
    """The faults behind everything; ``named`` writes their numbers above."""
    for number, band in enumerate(sorted(result.bands, key=lambda one: one.begin), 1):
        x, width = span(axis, band, result.seconds)
        title = f"<title>{number}: {escape(band.text)}, from {band.begin:.2f} s</title>"
        yield (
            f'<rect class="band" x="{x}" y="{top}" width="{width}" height="{bottom - top}">'
            f"{title}</rect>"
        )
        if named and len(result.bands) <= 40:
            yield f'<text class="number" x="{x + 2}" y="{top - 3}">{number}</text>'


def span(axis: Axis, band: Band, seconds: float) -> tuple[float, float]:
    """Where a band begins, and how wide it is; at least two pixels."""
    x = axis.x(band.begin)
    end = axis.x(seconds if band.end is None else band.end)
    return x, round(max(2.0, end - x), 1)


def lanes(result: Result) -> str:
    """One lane per node: its role as colour, its epoch as text, the faults as bands."""
    axis, top = Axis(result.seconds), 18
    bottom = top + LANE * len(result.nodes)
    parts = [axis.drawn(top, bottom), *bands(result, axis, top, bottom, named=True)]
    for row, node in enumerate(result.nodes):
        y = top + row * LANE
        parts.append(f'<text class="name" x="{LEFT - 10}" y="{y + 19}">{escape(node)}</text>')
        seen = [one for one in result.sightings if one.node == node]
        for begin, end, role, epoch in runs(seen, result.seconds):
            x = axis.x(begin)
            width = round(max(1.0, axis.x(end) - x), 1)
            colour = ROLES.get(role, OTHER_ROLE)
            told = f"{node}: {role}, epoch {epoch}, {begin:.1f} s to {end:.1f} s"
            parts.append(
                f'<rect x="{x}" y="{y + 5}" width="{width}" height="{LANE - 10}" fill="{colour}">'
                f"<title>{escape(told)}</title></rect>"
            )
            if role == "master" and width > 26:
                parts.append(f'<text class="epoch" x="{x + 4}" y="{y + 19}">e{epoch}</text>')
        for band in result.bands:
            if node in band.targets:
                x, width = span(axis, band, result.seconds)
                parts.append(
                    f'<rect class="hit" x="{x}" y="{y + 2}" width="{width}" height="{LANE - 4}"/>'
                )
    return svg(bottom + 22, parts, "nodes over time")


def runs(
    seen: Sequence[Sighting], seconds: float
) -> Iterator[tuple[float, float, str, int | None]]:
    """Stretches in which a node kept its role and epoch: begin, end, role, epoch."""
    begin: Sighting | None = None
    for one in seen:
        if begin is None:
            begin = one
        elif (one.role, one.epoch) != (begin.role, begin.epoch):
            yield begin.at, one.at, begin.role, begin.epoch
            begin = one
    if begin is not None:
        yield begin.at, seconds, begin.role, begin.epoch


def operations(result: Result) -> str:
    """Each send as a dot at its end: how long it took, coloured by outcome; write gaps marked."""
    axis, top, height = Axis(result.seconds), 18, 220
    bottom = top + height
    sends = [one for one in result.history if one.op == "send" and one.end is not None]
    scale = Scale([max(0.0001, (one.end or 0.0) - one.begin) for one in sends], top, bottom)
    parts = [axis.drawn(top, bottom), scale.drawn()]
    parts += bands(result, axis, top, bottom, named=False)
    for gap in result.gaps:
        parts.append(_gap(gap, axis, top, bottom))
    for outcome, colour in OUTCOMES.items():
        group = [one for one in sends if one.outcome == outcome]
        parts += [_dot(one, colour, axis, scale) for one in thinned(group)]
    return svg(bottom + 22, parts, "sends over time")


def thinned(group: Sequence[Operation]) -> Sequence[Operation]:
    """At most `DOTS_MAX` of them; the slowest ones always."""
    if len(group) <= DOTS_MAX:
        return group
    slowest = sorted(group, key=lambda one: one.begin - (one.end or 0.0))[:500]
    return [*group[:: len(group) // DOTS_MAX + 1], *slowest]


def _dot(one: Operation, colour: str, axis: Axis, scale: Scale) -> str:
    end = one.end or 0.0
    took = max(0.0001, end - one.begin)
    told = f"{one.id} {one.outcome} at {end:.3f} s after {took * 1000:.1f} ms"
    radius = 1.6 if one.outcome == "ok" else 3.2
    return (
        f'<circle cx="{axis.x(end)}" cy="{scale.y(took)}" r="{radius}" fill="{colour}">'
        f"<title>{escape(told)}</title></circle>"
    )


def _gap(gap: Gap, axis: Axis, top: int, bottom: int) -> str:
    x, end = axis.x(gap.begin), axis.x(gap.end)
    width = round(max(1.0, end - x), 1)
    told = f"no acknowledgement for {gap.seconds:.3f} s: {gap.fault}"
    mark = (
        f'<rect class="gap" x="{x}" y="{top}" width="{width}" height="{bottom - top}">'
        f"<title>{escape(told)}</title></rect>"
    )
    if width > 30:
        mark += (
            f'<text class="gapname" x="{x + width / 2}" y="{top + 12}">{gap.seconds:.2f} s</text>'
        )
    return mark


class Scale:
    """Seconds of an operation on a logarithmic scale, slow ones above."""

    def __init__(self, values: Sequence[float], top: int, bottom: int) -> None:
        self._top, self._bottom = top, bottom
        least = min(values, default=0.001)
        most = max(values, default=1.0)
        self._low = math.floor(math.log10(least))
        self._high = max(self._low + 1, math.ceil(math.log10(most)))

    def y(self, value: float) -> float:
        """Where a duration is."""
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return round(self._bottom - share * (self._bottom - self._top), 1)

    def drawn(self) -> str:
        """A line for each power of ten."""
        parts: list[str] = []
        for power in range(self._low, self._high + 1):
            y = self.y(10.0**power)
            name = f"{10.0**power:g} s" if power >= 0 else f"{10.0 ** (power + 3):g} ms"
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
                f'<text class="name" x="{LEFT - 10}" y="{y + 4}">{name}</text>'
            )
        return "".join(parts)


def offsets(result: Result) -> str:
    """Each node's end (line) and confirm offset (dashed) over time; a cut is a step down."""
    axis, top, height = Axis(result.seconds), 18, 200
    bottom = top + height
    values = [one.end for one in result.sightings if one.end is not None]
    low, high = min(values, default=0), max(values, default=1)
    high = max(high, low + 1)

    def y(value: int) -> float:
        return round(bottom - (value - low) / (high - low) * height, 1)

    parts = [axis.drawn(top, bottom), *bands(result, axis, top, bottom, named=False)]
    for value in (low, high):
        name = f"{value / (1 << 20):.1f} MiB"
        parts.append(f'<text class="name" x="{LEFT - 10}" y="{y(value) + 4}">{name}</text>')
    for number, node in enumerate(result.nodes):
        seen = [one for one in result.sightings if one.node == node]
        colour = LINES[number % len(LINES)]
        for style, pick in (("", "end"), ('stroke-dasharray="3 3"', "confirm")):
            for stretch in stretches(seen, pick):
                points = " ".join(f"{axis.x(at)},{y(value)}" for at, value in stretch)
                parts.append(
                    f'<polyline points="{points}" fill="none" stroke="{colour}" '
                    f'stroke-width="1.4" {style}><title>{escape(node)} {pick}</title></polyline>'
                )
        parts.append(
            f'<text class="key" x="{LEFT + 8 + 44 * number}" y="{top + 12}" fill="{colour}">'
            f"{escape(node)}</text>"
        )
    return svg(bottom + 22, parts, "offsets over time")


def stretches(seen: Sequence[Sighting], pick: str) -> Iterator[list[tuple[float, int]]]:
    """Points of one offset, interrupted where the node did not say it."""
    points: list[tuple[float, int]] = []
    for one in seen:
        value = one.end if pick == "end" else one.confirm
        if value is not None:
            points.append((one.at, value))
        elif points:
            yield points
            points = []
    if points:
        yield points


def reads_in_words(history: Sequence[Operation]) -> str:
    """What readers saw, in a line."""
    live = [one for one in history if one.op == "read" and not one.settled and one.end is not None]
    count = sum(len(one.records) for one in live)
    ends = sorted(one.end for one in live if one.end is not None)
    gaps = [after - before for before, after in pairwise(ends)]
    longest = max(gaps, default=0.0)
    return f"{count} messages in {len(live)} answers, at most {longest:.2f} s apart"
