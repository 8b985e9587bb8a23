"""Options, formats and addresses: what a user writes, whole and broken."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cli.bench_figures import Histogram
from cli.failures import Exit, Failure
from cli.message import normal_address
from cli.message_format import as_fields, parse_format
from cli.options import Output, split
from cli.parsing import joined


def test_global_options_may_stand_anywhere() -> None:
    """Before the noun, behind the verb, with a space or an equals sign; not behind `--`."""
    options, rest = split(["-o", "json", "topic", "show", "-q", "x", "--timeout=0"], {})
    assert (options.output, options.quiet, options.timeout) == (Output.JSON, True, None)
    assert rest == ["topic", "show", "x"]
    options, rest = split(["a", "--", "-o", "json"], {})
    assert options.output is Output.TABLE
    assert rest == ["a", "--", "-o", "json"]
    assert split(["-vv", "-v"], {})[0].verbose == 3


def test_option_over_environment_over_default() -> None:
    """The nearer one wins."""
    environment = {
        "TWINLOG_OUTPUT": "tsv",
        "TWINLOG_TIMEOUT": "3 s",
        "TWINLOG_ENDPOINT": "a:1, b:2",
        "TWINLOG_CONFIG": "x.toml",
    }
    options, _ = split([], environment)
    assert (options.output, options.timeout, options.endpoints) == (Output.TSV, 3.0, ("a:1", "b:2"))
    assert str(options.config) == "x.toml"
    options, _ = split(["-o", "name", "--timeout", "1s", "-e", "c:3", "-e", "d:4"], environment)
    assert (options.output, options.timeout, options.endpoints) == (
        Output.NAME,
        1.0,
        ("c:3", "d:4"),
    )
    assert split([], {})[0].timeout == 10.0


@pytest.mark.parametrize(
    "words", [["-o", "yaml"], ["--color", "pink"], ["--timeout", "soon"], ["-o"], ["-c"]]
)
def test_a_value_that_does_not_fit(words: list[str]) -> None:
    """Exit 64, with what fits."""
    with pytest.raises(Failure) as caught:
        split(words, {})
    assert caught.value.exit is Exit.USAGE


def test_ranges_that_begin_with_a_dash() -> None:
    """`--range -10:` is one option with its value; names of options are left alone."""
    assert joined(["t", "--range", "-10:", "-n", "5"]) == ["t", "--range=-10:", "-n", "5"]
    assert joined(["--range=1:", "-5"]) == ["--range=1:", "-5"]


@dataclass
class Shown:
    """A message."""

    body: bytes = b'{"id": 42}'
    topic: str = "orders"
    queue: int = 3
    queue_offset: int = 1187
    log_offset: int = 4096
    key: str | None = "42"
    tag: str | None = None
    born_timestamp: int = 1_700_000_000_000
    store_timestamp: int = 1_700_000_000_123
    properties: dict[str, str] = field(default_factory=lambda: {"KEYS": "42", "a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%q %o %k %v%n", '3 1187 42 {"id": 42}\n'),
        ("%t/%q@%o %O", "orders/3@1187 4096"),
        ("[%g] %h %s %%", "[] a=1,b=2 10 %"),
        ("%v{hex}", "7b226964223a2034327d"),
        ("%v{base64}", "eyJpZCI6IDQyfQ=="),
        ("%v{json}", '"{\\"id\\": 42}"'),
        ("%d", "2023-11-14T22:13:20.123Z"),
        ("%d{iso}\\t%d{unix}", "2023-11-14T22:13:20.123Z\t1700000000.123"),
        ("plain", "plain"),
    ],
)
def test_formats(text: str, shown: str) -> None:
    """Each letter and modifier of the grammar."""
    assert parse_format(text)(Shown()) == shown


@pytest.mark.parametrize("text", ["%", "%z", "%v{nonsense}", "%q{hex}", "%v{", "100%"])
def test_formats_that_mean_nothing(text: str) -> None:
    """Exit 64 for what the grammar does not have; an open brace is a brace."""
    if text == "%v{":
        assert parse_format(text)(Shown(body=b"x")) == "x{"
        return
    with pytest.raises(Failure) as caught:
        parse_format(text)
    assert caught.value.exit is Exit.USAGE


def test_a_body_that_is_no_text() -> None:
    """It is shown with replacements, and exactly as base64."""
    message = Shown(body=b"\xff\x00a")
    assert parse_format("%v")(message) == "\ufffd\x00a"
    fields = as_fields(message)
    assert fields["body_base64"] == "/wBh"
    assert "body" not in fields


def test_addresses() -> None:
    """Three forms; a message id carries its log offset in the last eight bytes."""
    assert normal_address("orders/3@7") == "orders/3@7"
    assert normal_address("log@4096") == "log@4096"
    wanted = "7F00000100002A9F00000000000000FF"
    assert normal_address(wanted.lower()) == wanted
    for text in ("orders", "orders/3", "log@", "7F00", "a/b@c"):
        with pytest.raises(Failure):
            normal_address(text)


def test_histograms_of_several_processes_add_up() -> None:
    """Percentiles are right to 2 %, and survive the way through JSON."""
    one, two = Histogram(), Histogram()
    for ms in range(1, 1001):
        (one if ms % 2 else two).add(ms / 1000)
    whole = Histogram.from_plain(one.plain())
    whole.merge(Histogram.from_plain(two.plain()))
    assert whole.total == 1000
    p50, p99 = whole.percentile(50), whole.percentile(99)
    assert p50 is not None
    assert abs(p50 - 0.5) < 0.011
    assert p99 is not None
    assert abs(p99 - 0.99) < 0.021
    assert whole.percentile(100) == 1.0
    assert Histogram().percentile(50) is None
    assert Histogram().fields()["p50"] is None
