"""``twinlog completion``: commands, verbs and options for the shell's Tab key.

The scripts are written from the command tree and hold everything they need, so that pressing Tab
starts no Python.  Where a file is expected, the shell completes file names.

    bash   eval "$(twinlog completion bash)"               in ~/.bashrc
    zsh    eval "$(twinlog completion zsh)"                in ~/.zshrc, after compinit
    fish   twinlog completion fish > ~/.config/fish/completions/twinlog.fish
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.help.pages import arguments, visible
from cli.options import OPTIONS, Colour, Output
from cli.parsing import PRIVATE
from cli.tree import NOUNS, Command, of_noun

VALUES = {
    "-o": tuple(Output),
    "--output": tuple(Output),
    "--color": tuple(Colour),
}
"""Options whose values are known words."""

Words = Mapping[tuple[str, str], list[tuple[str, str]]]
"""Noun and verb typed so far to what may come next: a word and its meaning."""


def completion(shell: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Print a completion script for bash, zsh or fish.

    In ``~/.bashrc`` or ``~/.zshrc`` (after compinit): ``eval "$(twinlog completion bash)"``. For
    fish: ``twinlog completion fish > ~/.config/fish/completions/twinlog.fish``.

    Args:
        shell: bash, zsh or fish.
    """
    if shell not in SCRIPTS:
        facts = (f"there are {', '.join(SCRIPTS)}",)
        raise Failure(
            Exit.USAGE,
            f"there is no completion for {shell}",
            facts=facts,
            hints=nearest(shell, SCRIPTS),
        )
    context.printer.text(SCRIPTS[shell](known_words()))
    return Exit.OK


def known_words() -> Words:
    """Everything that can be completed, from the tree and the functions' parameters."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {("", ""): list(NOUNS.items())}
    for noun in NOUNS:
        verbs = [(c.path[1], c.summary) for c in of_noun(noun) if len(c.path) > 1]
        found[noun, ""] = verbs
    for command in visible():
        key = (command.path[0], command.path[1] if len(command.path) > 1 else "")
        found[key] = [*found.get(key, []), *_options(command)]
    return found


def _options(command: Command) -> Iterator[tuple[str, str]]:
    for argument in arguments(command):
        if not argument.positional:
            yield argument.name.split(", ")[0], argument.text


def _globals() -> list[tuple[str, str]]:
    return [(option.names[-1], option.summary) for option in OPTIONS]


def _valued() -> str:
    """The global options that are followed by a value, as a pattern of the shell."""
    return "|".join(name for option in OPTIONS if option.value for name in option.names)


def bash(words: Words) -> str:
    """The script for bash, 3.2 or later."""
    cases = [
        f"    {noun}/{verb}) known={shlex.quote(' '.join(word for word, _ in found))} ;;"
        for (noun, verb), found in words.items()
    ]
    values = [
        f'    {name}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(of))} -- "$cur")); return ;;'
        for name, of in VALUES.items()
    ]
    always = shlex.quote(" ".join(word for word, _ in _globals()))
    return "\n".join(
        [
            "_twinlog() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local noun="" verb="" known="" at',
            '  case "$prev" in',
            *values,
            "  esac",
            "  for ((at = 1; at < COMP_CWORD; at++)); do",
            '    case "${COMP_WORDS[at]}" in',
            f"      {_valued()}) at=$((at + 1)) ;;",
            "      -*) ;;",
            '      *) if [ -z "$noun" ]; then noun="${COMP_WORDS[at]}"',
            '         elif [ -z "$verb" ]; then verb="${COMP_WORDS[at]}"; fi ;;',
            "    esac",
            "  done",
            '  case "$noun/$verb" in',
            *cases,
            "  esac",
            '  case "$cur" in',
            f'    -*) known="$known "{always} ;;',
            "  esac",
            '  COMPREPLY=($(compgen -W "$known" -- "$cur"))',
            "}",
            "complete -o default -F _twinlog twinlog",
            "",
        ]
    )


def zsh(words: Words) -> str:
    """The script for zsh, with the meaning of each word."""
    cases = [
        f"    ({noun}/{verb}) found=({' '.join(map(_described, found))}) ;;"
        for (noun, verb), found in words.items()
    ]
    values = [
        f"    ({name}) found=({' '.join(of)}); _describe value found; return ;;"
        for name, of in VALUES.items()
    ]
    return "\n".join(
        [
            "#compdef twinlog",
            "_twinlog() {",
            "  local -a found",
            '  local noun="" verb=""',
            "  local -i at",
            '  case "${words[CURRENT-1]}" in',
            *values,
            "  esac",
            "  for ((at = 2; at < CURRENT; at++)); do",
            '    case "${words[at]}" in',
            f"      ({_valued()}) at=$((at + 1)) ;;",
            "      (-*) ;;",
            '      (*) if [[ -z "$noun" ]]; then noun="${words[at]}"',
            '          elif [[ -z "$verb" ]]; then verb="${words[at]}"; fi ;;',
            "    esac",
            "  done",
            '  case "$noun/$verb" in',
            *cases,
            "  esac",
            '  [[ "${words[CURRENT]}" == -* ]] &&',
            f"    found+=({' '.join(map(_described, _globals()))})",
            "  _describe twinlog found || _files",
            "}",
            "compdef _twinlog twinlog",
            "",
        ]
    )


def _described(word: tuple[str, str]) -> str:
    """One word with its meaning, as zsh's ``_describe`` wants it."""
    name, meaning = word
    return shlex.quote(f"{name.replace(':', '-')}:{meaning}")


def fish(words: Words) -> str:
    """The script for fish: one line for each word."""
    lines = [
        "function __twinlog_at",
        "  set -l said",
        "  set -l skip 0",
        "  for word in (commandline -opc)[2..-1]",
        "    if test $skip = 1",
        "      set skip 0",
        f"    else if string match -qr -- '^({_valued()})$' $word",
        "      set skip 1",
        "    else if not string match -q -- '-*' $word",
        "      set -a said $word",
        "    end",
        "  end",
        '  test "$said[1]/$said[2]" = "$argv[1]/$argv[2]"',
        "end",
    ]
    for (noun, verb), found in words.items():
        where = f"__twinlog_at {noun or chr(39) * 2} {verb or chr(39) * 2}"
        for word, meaning in found:
            how = f"-l {word[2:]}" if word.startswith("--") else f"-fa {word}"
            lines.append(
                f"complete -c twinlog -n {shlex.quote(where)} {how} -d {shlex.quote(meaning)}"
            )
    for option in OPTIONS:
        names = [
            f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1:]}" for name in option.names
        ]
        values = VALUES.get(option.names[-1])
        if values is not None:
            names.append(f"-xa {shlex.quote(' '.join(values))}")
        elif option.value:
            names.append("-r")
        lines.append(f"complete -c twinlog {' '.join(names)} -d {shlex.quote(option.summary)}")
    return "\n".join([*lines, ""])


SCRIPTS: Mapping[str, Callable[[Words], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
