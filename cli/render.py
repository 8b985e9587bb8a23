"""The only printer: the same answer as a table, JSON, JSON lines, YAML, TSV or names.

Data goes to stdout, everything else to stderr.  Colour appears only on a terminal, and rich is
imported only then; there are no box lines anywhere.

Not here: what an answer is (``answer``), errors as text (``failures``).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from cli.answer import Absent, Answer, Cell, Column, Seconds, Size, Table, Time, dump, rfc3339
from cli.failures import Failure
from cli.options import Colour, Globals, Output
from twinlog.units import format_duration, format_size

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


_CLUSTER_COMMAND = re.compile(
    r"(?<=: )twinlog(?= (?:bench|cluster|config|coordinator|debug|dlq|group|message|node|topic) )"
)
"""A command in a hint that asks a cluster; commands on files and of ``dev`` do not."""


def _escaped(found: re.Match[str]) -> str:
    """A control character as it is written: keys of records come from anybody."""
    return repr(found[0])[1:-1]


class _Nowhere(RawIOBase):
    """Takes bytes and keeps none."""

    def writable(self) -> bool:
        """Say yes."""
        return True

    def write(self, data: Buffer) -> int:
        """Take all."""
        return memoryview(data).nbytes


def _standard(stream: TextIO | None) -> TextIO:
    """A standard stream; when it was closed before the start (``>&-``), output is discarded."""
    return stream or TextIOWrapper(BufferedWriter(_Nowhere()), encoding="utf-8")


class Printer:
    """Writes answers to ``out`` and remarks to ``err`` as the global options say."""

    def __init__(
        self, options: Globals, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.options = options
        self.out = out or _standard(sys.stdout)
        self.err = err or _standard(sys.stderr)
        for stream in (self.out, self.err):
            if isinstance(stream, TextIOWrapper):
                # names of files and texts of others may hold what UTF-8 has no bytes for; what
                # is written then is also how JSON writes it
                stream.reconfigure(errors="backslashreplace")
        self.terminal = self.out.isatty()
        self.err_terminal = self.err.isatty()
        self._status_width = 0
        self._status_at = 0.0

    @property
    def machine(self) -> bool:
        """Whether the output is meant for a program."""
        return self.options.output not in (Output.TABLE, Output.WIDE)

    @property
    def coloured(self) -> bool:
        """Whether stdout gets colours."""
        match self.options.colour:
            case Colour.ALWAYS:
                return True
            case Colour.NEVER:
                return False
            case Colour.AUTO:
                return self.terminal

    def answer(self, found: Answer) -> None:
        """Print one answer in the chosen format."""
        self.clear_status()
        match self.options.output:
            case Output.JSON:
                self._line(dump(found.document()))
            case Output.YAML:
                self._yaml(found.document())
            case Output.JSONL:
                kind = {"kind": found.kind, "version": found.version}
                for item in found.items:
                    self._line(dump({**kind, **item} if "kind" not in item else item))
                if not found.items:
                    self._line(dump(found.document()))
            case Output.NAME:
                for name in found.names:
                    self._line(name)
            case Output.TSV:
                for table in found.tables:
                    self._tsv(table)
            case Output.TABLE | Output.WIDE | Output.SCHEMA:  # `app` prints schemas
                self._people(found)

    def line(self, text: str) -> None:
        """Print one line of data as it stands."""
        self.clear_status()
        self._line(text)

    def text(self, text: str) -> None:
        """Print data as it stands, without a line end."""
        self.clear_status()
        self.out.write(text)
        self.out.flush()

    def data(self, value: bytes) -> None:
        """Print bytes of data as they stand."""
        self.clear_status()
        self.out.flush()
        self.out.buffer.write(value)
        self.out.buffer.flush()

    def item(self, value: Mapping[str, object]) -> None:
        """Print one object of a stream: JSON on its own line, or a document of YAML."""
        if self.options.output is Output.YAML:
            self._yaml(value)
        else:
            self._line(dump(value))

    def _yaml(self, value: Mapping[str, object], to: TextIO | None = None) -> None:
        """Print a document of YAML; the line before it divides those of a stream."""
        from cli.yaml_text import document

        print(document(value), end="", file=to or self.out, flush=True)

    def note(self, text: str) -> None:
        """Say something on stderr, unless told to be quiet."""
        if not self.options.quiet:
            self.clear_status()
            print(self._as_called(text), file=self.err, flush=True)

    def _as_called(self, text: str) -> str:
        """Commands in hints name the cluster as this call did."""
        return _CLUSTER_COMMAND.sub(f"twinlog{self.options.called}".replace("\\", r"\\"), text)

    def detail(self, text: str, level: int = 1) -> None:
        """Say something on stderr that only ``-v`` (or ``-vv``) asks for."""
        if self.options.verbose >= level:
            self.clear_status()
            print(text, file=self.err, flush=True)

    def error(self, failure: Failure) -> None:
        """Print a failure on stderr: for people in lines, for programs as one JSON document."""
        self.clear_status()
        if self.options.output in (Output.JSON, Output.JSONL):
            print(dump(self._document(failure)), file=self.err, flush=True)
            return
        if self.options.output is Output.YAML:
            self._yaml(self._document(failure), self.err)
            return
        for number, text in enumerate(failure.lines()):
            shown = self._as_called(text)
            if number == 0 and self.err_terminal and self.options.colour is not Colour.NEVER:
                word, colon, rest = text.partition(":")
                shown = f"\x1b[1;31m{word}{colon}\x1b[0m{rest}"
            print(shown, file=self.err, flush=True)

    def _document(self, failure: Failure) -> dict[str, object]:
        """A failure for machines; its hints name the cluster as this call did, too."""
        found = failure.document()
        found["hints"] = [self._as_called(hint) for hint in failure.hints]
        if failure.more:
            found["more"] = [self._document(other) for other in failure.more]
        return found

    def clear_screen(self) -> None:
        """Begin a new picture on a terminal; elsewhere pictures follow each other."""
        if self.terminal and not self.machine:
            self.out.write("\x1b[H\x1b[2J")
            self.out.flush()

    def status(self, text: str) -> None:
        """Show progress: one redrawn line on a terminal, one line every ten seconds elsewhere."""
        if self.options.quiet:
            return
        now = time.monotonic()
        if self.err_terminal:
            self.err.write("\r" + text.ljust(self._status_width))
            self.err.flush()
            self._status_width = len(text)
        elif now - self._status_at >= 10:
            print(text, file=self.err, flush=True)
            self._status_at = now

    def clear_status(self) -> None:
        """Take the progress line away before something else is printed."""
        if self._status_width:
            self.err.write("\r" + " " * self._status_width + "\r")
            self.err.flush()
            self._status_width = 0

    def cell(self, value: Cell, *, exact: bool = False) -> str:
        """One value as text; ``exact`` writes bytes and seconds as plain numbers."""
        match value:
            case None:
                return "-"
            case Absent():
                return "?"
            case bool():
                return "yes" if value else "no"
            case Size():
                plain = exact or self.options.exact_bytes
                return str(value.bytes) if plain else format_size(value.bytes)
            case Seconds():
                return f"{value.seconds:.6g}" if exact else format_duration(value.seconds)
            case Time():
                return self._moment(value.ms, exact)
            case float():
                return f"{value:.6g}"
            case _:
                return _CONTROL.sub(_escaped, str(value)) or "-"

    def _moment(self, ms: int, exact: bool) -> str:
        if exact or not self.terminal:
            return rfc3339(ms)
        age = time.time() - ms / 1000
        return f"{format_duration(age)} ago" if age >= 0 else rfc3339(ms)

    def _line(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def _people(self, found: Answer) -> None:
        if found.head:
            self._line(self._as_called(found.head))
            if found.tables:
                self._line("")
        for number, table in enumerate(found.tables):
            if number:
                self._line("")
            if table.title:
                self._line(table.title)
            for text in self._table(table):
                self._line(text)
        if found.tail:
            if found.tables:
                self._line("")
            self._line(self._tail(found))
        if found.next and self.terminal and not self.options.quiet:
            self.note(f"\nnext: {found.next}")

    def _tail(self, found: Answer) -> str:
        """The lines below the tables; what is wrong in red, the commands that go on as they are."""
        told = self._as_called(found.tail)
        if not (found.trouble and self.coloured):
            return told
        lines = told.splitlines()
        return "\n".join(one if one[:1] == " " else f"\x1b[31m{one}\x1b[0m" for one in lines)

    def _table(self, table: Table) -> list[str]:
        wide = self.options.output is Output.WIDE
        shown = [at for at, column in enumerate(table.columns) if wide or not column.wide]
        heads = [table.columns[at] for at in shown]
        rows = [[self.cell(row[at]) for at in shown] for row in table.rows]
        widths = [
            max([len(head.name), *(len(row[at]) for row in rows)]) for at, head in enumerate(heads)
        ]
        lines = [_join([head.name for head in heads], heads, widths)]
        lines += [_join(row, heads, widths) for row in rows]
        return self._paint(lines) if self.coloured else lines

    def _paint(self, lines: list[str]) -> list[str]:
        """Colour a table: header bold, trouble red, the master's row bold."""
        from io import StringIO

        from rich.console import Console
        from rich.text import Text

        painted: list[str] = []
        for number, text in enumerate(lines):
            buffer = StringIO()
            console = Console(file=buffer, force_terminal=True, width=max(len(text), 1) + 1)
            line = Text(text, style="bold" if number == 0 else "")
            line.highlight_regex(r"\b(unreachable|quarantined|fenced|down|lost)\b", "red")
            line.highlight_regex(r"^\S+\*", "bold green")
            console.print(line, end="", soft_wrap=True)
            painted.append(buffer.getvalue())
        return painted

    def _tsv(self, table: Table) -> None:
        self._line("\t".join(column.name.lower() for column in table.columns))
        for row in table.rows:
            cells = [self.cell(value, exact=True) for value in row]
            self._line("\t".join(text.replace("\t", " ").replace("\n", " ") for text in cells))


def _join(cells: Sequence[str], heads: Sequence[Column], widths: Sequence[int]) -> str:
    parts = [
        text.rjust(width) if head.right else text.ljust(width)
        for text, head, width in zip(cells, heads, widths, strict=True)
    ]
    return "  ".join(parts).rstrip()
