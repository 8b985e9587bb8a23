"""Looking commands up: by the words that a user typed, by noun.

Not here: which commands there are (`cli.commands`).
"""

from __future__ import annotations

from collections.abc import Iterator

from cli.commands import COMMANDS, Command

NOUNS = {
    "demo": "watch a master die without losing anything, in a minute",
    "cluster": "what the cluster is doing, and which node is master",
    "coordinator": "the process that decides which node is master",
    "node": "start, stop and inspect single nodes",
    "topic": "topics and their queues",
    "message": "send and read messages",
    "group": "work queues: who handles messages, and what is left",
    "dlq": "dead letters: messages that a group gave up",
    "log": "inspect the files of a store; needs no node",
    "store": "turn a RocketMQ store into a twinlog store",
    "spark": "jobs over whole stores: archive, verify, compare, report, replay",
    "bench": "measure this cluster",
    "drill": "rehearse failures, with a verdict and a report",
    "config": "the cluster file",
    "dev": "a cluster on this machine for development",
    "version": "what is installed and which kernels run",
    "help": "this text, the exit codes",
    "completion": "completion of commands for bash, zsh and fish",
}
"""The first words, in the order help shows them."""

_BY_PATH = {command.path: command for command in COMMANDS}


NEVER_SUGGESTED = {
    "cluster failover", "cluster remove", "coordinator clear-alarm", "dev down", "dev kill",
    "dlq drop", "group delete", "group reset", "group skip", "log repair", "node stop",
    "store adopt",
}  # fmt: skip
"""Commands that stop, delete or depose: a mistyped word is never completed to one of them."""


def find(words: list[str]) -> tuple[Command | None, list[str]]:
    """The command that ``words`` begin with and the words behind its name; None when none does.

    >>> command, rest = find(["topic", "show", "orders"])
    >>> command.name, rest
    ('topic show', ['orders'])
    """
    for length in (2, 1):
        command = _BY_PATH.get(tuple(words[:length]))
        if command is not None and len(words) >= length:
            return command, words[length:]
    return None, words


def of_noun(noun: str) -> Iterator[Command]:
    """The commands of one noun, without hidden ones."""
    return (command for command in COMMANDS if command.path[0] == noun and not command.hidden)


def names() -> list[str]:
    """Every command a user may type."""
    return [command.name for command in COMMANDS if not command.hidden]


__all__ = ["COMMANDS", "NEVER_SUGGESTED", "NOUNS", "Command", "find", "names", "of_noun"]
