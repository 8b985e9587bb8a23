"""Help: first examples, then the command's own options, then the global ones.

The same parameters feed ``--help``, ``twinlog help ...`` and the reference page ``docs/cli.md``;
a test compares the page with what `reference` returns.  Texts come from the functions' docstrings,
examples from the tree.

Not here: parsing (``cli.parsing``), commands (``about``, ``completion``).
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from cli.answer import Answer, Table
from cli.failures import EXITS, Exit, Failure, nearest
from cli.options import OPTIONS
from cli.tree import COMMANDS, NEVER_SUGGESTED, NOUNS, Command, find, names, of_noun


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a command as help shows it."""

    name: str
    text: str
    default: str
    positional: bool


WIDTH = 80
"""Columns of a help page."""


def _wrapped(label: str, text: str, indent: int) -> list[str]:
    """``label`` and beside it ``text``, wrapped; below it where the label is too long."""
    rest = textwrap.wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    if len(label) > indent - 2:
        return [label, *(" " * indent + line for line in rest)]
    first = f"{label:<{indent}}{rest[0] if rest else ''}".rstrip()
    return [first, *(" " * indent + line for line in rest[1:])]


def overview() -> str:
    """What ``twinlog --help`` prints."""
    lines = ["twinlog: a replicated message store whose files RocketMQ can read", ""]
    lines += ["usage: twinlog [global options] NOUN VERB [ARGUMENT] [options]", ""]
    lines += ["try:", "  twinlog demo", "  twinlog dev up", "", "commands:"]
    for noun, summary in NOUNS.items():
        verbs = [command.path[1] for command in of_noun(noun) if len(command.path) > 1]
        lines += _wrapped(f"  {noun}", summary, 15)
        if verbs:
            lines += _wrapped("", " ".join(verbs), 18)
    lines += ["", *_global_options(), "", "exit codes: twinlog help exit"]
    return "\n".join(lines)


def noun_page(noun: str) -> str:
    """What ``twinlog NOUN --help`` prints."""
    lines = [f"twinlog {noun}: {NOUNS[noun]}", ""]
    for command in of_noun(noun):
        lines += _wrapped(f"  {command.name}", command.summary, 25)
    lines += ["", f"more: twinlog {noun} VERB --help"]
    return "\n".join(lines)


def page(command: Command) -> str:
    """What ``twinlog NOUN VERB --help`` prints."""
    found = arguments(command)
    words = " ".join(argument.name for argument in found if argument.positional)
    lines = [*_wrapped(f"twinlog {command.name}:", command.summary, 2), "", "examples:"]
    if len(lines[0]) + len(command.summary) < WIDTH:
        lines[:2] = [f"twinlog {command.name}: {command.summary}"]
    lines += [f"  {example}" for example in command.examples]
    lines += ["", "usage:", f"  twinlog {command.name} {words}".rstrip() + " [options]", ""]
    about = description(command).replace("``", "")  # marks of the reference page, not of a terminal
    for paragraph in about.split("\n\n") if about else ():
        lines += [*textwrap.wrap(paragraph, WIDTH, break_on_hyphens=False), ""]
    if found:
        width = min(max(len(argument.name) for argument in found), 20) + 4
        lines.append("options:")
        for argument in found:
            default = f" [default: {argument.default}]" if argument.default else ""
            text = argument.text.replace("``", "") + default
            lines += _wrapped(f"  {argument.name}", text, width)
        lines.append("")
    return "\n".join([*lines, *_global_options()])


def _global_options() -> list[str]:
    lines = ["global options:"]
    for option in OPTIONS:
        name = f"{', '.join(option.names)} {option.value}".rstrip()
        variable = f" [{option.environment}]" if option.environment else ""
        lines += _wrapped(f"  {name}", f"{option.summary}{variable}", 29)
    return lines


def arguments(command: Command) -> list[Argument]:
    """The parameters of a command, positional ones first."""
    from cli.parsing import application

    found: list[Argument] = []
    collection = application(command).assemble_argument_collection(parse_docstring=True)
    for argument in collection:
        if not argument.parse:
            continue
        kind = argument.field_info.kind
        positional = kind is not inspect.Parameter.KEYWORD_ONLY
        name = argument.field_info.name.strip("_").upper() if positional else argument.name
        default = argument.field_info.default
        plain = default in (None, False, (), inspect.Parameter.empty, "")
        others = [other for other in argument.names[1:] if not other.startswith("--no-")]
        found.append(
            Argument(
                ", ".join([name, *([] if positional else others)]),
                " ".join(str(argument.parameter.help or "").split()),
                "" if plain else str(default),
                positional,
            )
        )
    return found


def description(command: Command) -> str:
    """The docstring of a command between its first line and its arguments."""
    from cli.parsing import load

    text = inspect.getdoc(load(command)) or ""
    body = text.split("\n", 1)[1] if "\n" in text else ""
    for heading in ("Args:", "Returns:", "Raises:"):
        body = body.split(f"\n{heading}", 1)[0]
    return body.strip().removeprefix("Args:").strip() if not body.startswith("Args:") else ""


def exits() -> Answer:
    """The table of exit codes."""
    items = [
        {"exit": int(code), "name": code.name.lower(), "when": when, "script": may}
        for code, (when, may) in sorted(EXITS.items())
    ]
    return Answer(
        kind="ExitCodes",
        fields={"exits": items},
        tables=[Table.of("EXIT> NAME WHEN A-SCRIPT-MAY=script", items)],
        items=items,
        names=[str(item["name"]) for item in items],
    )


def text_for(words: list[str]) -> str:
    """Help for the words of a call that are a command's name.

    Raises:
        Failure: There is no such command (exit 64).
    """
    if not words:
        return overview()
    command, _ = find(words)
    if command is not None:
        return page(command)
    if words[0] in NOUNS and len(words) == 1:
        return noun_page(words[0])
    raise unknown_command(words)


def unknown_command(words: Sequence[str]) -> Failure:
    """What a call with an unknown noun or verb ends with."""
    noun = words[0]
    if noun not in NOUNS:
        return Failure(
            Exit.USAGE,
            f'there is no command "{noun}"',
            hints=(*nearest(noun, NOUNS), "all commands: twinlog --help"),
        )
    verbs = [command.path[1] for command in of_noun(noun) if len(command.path) > 1]
    if len(words) == 1:
        return Failure(
            Exit.USAGE,
            f"{noun} needs a verb: {', '.join(verbs)}",
            hints=(f"more: twinlog {noun} --help",),
        )
    said = " ".join(words[:2])
    return Failure(
        Exit.USAGE,
        f'there is no command "{said}"',
        facts=(f"{noun} has {', '.join(verbs)}",),
        hints=nearest(said, [one for one in names() if one not in NEVER_SUGGESTED], f"{noun} "),
    )


def reference() -> str:
    """The reference page ``docs/cli.md``: every command, option and exit code."""
    lines = [
        "# Commands",
        "",
        "Generated from the command tree by `python -m tests.tidy.generate`; a test compares them.",
        "Grammar: `twinlog [global options] NOUN VERB [ARGUMENT] [options]`.",
        "",
        "## Global options",
        "",
        "| option | environment | meaning |",
        "|---|---|---|",
    ]
    for option in OPTIONS:
        name = f"{', '.join(option.names)} {option.value}".rstrip()
        variable = f"`{option.environment}`" if option.environment else ""
        lines.append(f"| `{name}` | {variable} | {option.summary} |")
    lines += ["", "## Exit codes", "", "| exit | name | when | a script may |", "|---|---|---|---|"]
    for code, (when, may) in sorted(EXITS.items()):
        lines.append(f"| {int(code)} | {code.name.lower()} | {when} | {may} |")
    for noun, summary in NOUNS.items():
        lines += ["", f"## {noun}", "", f"{summary[0].upper()}{summary[1:]}."]
        for command in of_noun(noun):
            lines += _section(command)
    return "\n".join(lines) + "\n"


def _section(command: Command) -> list[str]:
    found = arguments(command)
    lines = ["", f"### twinlog {command.name}", ""]
    lines.append(f"{command.summary[0].upper()}{command.summary[1:]}.")
    about = description(command)
    if about:
        lines += ["", about]
    if found:
        lines += ["", "| argument | meaning | default |", "|---|---|---|"]
        for argument in found:
            default = f"`{argument.default}`" if argument.default else ""
            text = argument.text.replace("|", "\\|")
            lines.append(f"| `{argument.name}` | {text} | {default} |")
    return [*lines, "", "```sh", *command.examples, "```"]


def visible() -> list[Command]:
    """The commands a user may type."""
    return [command for command in COMMANDS if not command.hidden]
