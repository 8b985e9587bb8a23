"""Looking commands up: by the words that a user typed, by noun.

Not here: which commands there are (the tables of `cli.commands`, joined here).
"""

from __future__ import annotations

from collections.abc import Iterator

from cli.commands.cluster import ACCESS, CLUSTER
from cli.commands.command import Command
from cli.commands.machine import MACHINE
from cli.commands.messages import MESSAGES
from cli.commands.stores import STORES

COMMANDS = (*MACHINE, *CLUSTER, *MESSAGES, *ACCESS, *STORES)
"""Every command, in the order of the reference page."""

NOUNS = {
    "demo": "watch a master die without losing anything, in a minute",
    "cluster": "what the cluster is doing, and which node is master",
    "coordinator": "the process that decides which node is master",
    "node": "start, stop and inspect single nodes",
    "topic": "topics and their queues",
    "message": "send and read messages",
    "timer": "messages that wait for a time",
    "group": "work queues: who handles messages, and what is left",
    "transaction": "messages delivered together or never: which wait",
    "dlq": "dead letters: messages that a group gave up",
    "user": "who may log in",
    "rule": "what users and teams may do",
    "access": "explain rights; the operator's password",
    "log": "inspect the files of a store; needs no node",
    "store": "a RocketMQ store becomes a twinlog store, and back",
    "spark": "jobs over whole stores: archive, verify, compare, report, replay",
    "bench": "measure this cluster",
    "drill": "rehearse failures, with a verdict and a report",
    "config": "the cluster file",
    "certificates": "certificates for TLS, for trying out",
    "dev": "a cluster on this machine for development",
    "doctor": "what is wrong here: this machine, its directories, the cluster",
    "debug": "what to send to someone who helps",
    "version": "what is installed and which kernels run",
    "help": "this text, the exit codes",
    "completion": "completion of commands for bash, zsh and fish",
    "man": "manual pages of all commands",
}
"""The first words, in the order help shows them."""

_BY_PATH = {command.path: command for command in COMMANDS}


NEVER_SUGGESTED = {
    "cluster failover", "cluster remove", "coordinator clear-alarm", "dev down", "dev kill",
    "dlq drop", "group delete", "group reset", "group skip", "log repair", "node stop",
    "rule remove", "store adopt", "store handover", "transaction commit", "transaction rollback",
    "user remove",
}  # fmt: skip
"""Commands that stop, delete or depose: a mistyped word is never completed to one of them."""

AGREEMENTS = {"--force", "--unclean", "--wipe", "--yes"}
"""Options by which a caller agrees to harm; never completed to, either."""


def find(words: list[str]) -> tuple[Command | None, list[str]]:
    """The command that ``words`` begin with and the words behind its name; None when none does.

    ``access user add`` is ``user add``, and ``access rule add`` likewise.

    >>> command, rest = find(["topic", "show", "orders"])
    >>> command.name, rest
    ('topic show', ['orders'])
    """
    if words[:1] == ["access"] and words[1:2] in (["user"], ["rule"]):
        words = words[1:]
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


__all__ = [
    "AGREEMENTS",
    "COMMANDS",
    "NEVER_SUGGESTED",
    "NOUNS",
    "Command",
    "find",
    "names",
    "of_noun",
]
