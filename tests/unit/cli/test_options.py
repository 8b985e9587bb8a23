"""Global options and ranges as a user writes them, valid and not."""

from __future__ import annotations

import pytest

from cli.failures import Exit, Failure
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
    "words", [["-o", "xml"], ["--color", "pink"], ["--timeout", "soon"], ["-o"], ["-c"]]
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
