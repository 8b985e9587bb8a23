"""Every command: its place in the tree, where its function lives, and examples.

The tree is data, so that help, the reference page, the search for the nearest command and the tests
read the same thing, and so that nothing is imported before it is known which command runs.

An example must work as it stands with a running local cluster; a test looks that every command has
one.  Hidden commands are called by twinlog itself.

Not here: parameters and their help (the functions' signatures and docstrings).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command; ``target`` is ``module:function``."""

    path: tuple[str, ...]
    target: str
    summary: str
    examples: tuple[str, ...]
    hidden: bool = False

    @property
    def name(self) -> str:
        """The words a user types."""
        return " ".join(self.path)


def _command(name: str, target: str, summary: str, *examples: str, hidden: bool = False) -> Command:
    return Command(tuple(name.split()), target, summary, examples, hidden)


NOUNS = {
    "demo": "see a master die and nothing get lost, in a minute",
    "cluster": "what the cluster is doing, and who is master",
    "coordinator": "the process that keeps who is master",
    "node": "single nodes: start, stop, look",
    "topic": "topics and their queues",
    "message": "send and read messages",
    "log": "look at the files of a store; needs no node",
    "store": "take a store of RocketMQ's as one of ours",
    "spark": "jobs over whole stores: archive, verify, compare, report, replay",
    "bench": "measure this cluster",
    "config": "the cluster file",
    "dev": "a cluster on this machine for development",
    "version": "what is installed and which kernels run",
    "help": "this text, the exit codes",
}
"""The first words, in the order help shows them."""

COMMANDS = (
    _command(
        "demo",
        "cli.demo:demo",
        "start a cluster, load flights, kill the master, fail over, check",
        "twinlog demo",
        "twinlog demo -o json",
        "twinlog demo --keep",
    ),
    _command(
        "cluster status",
        "cli.cluster:status",
        "every node with role, end, lag and last contact",
        "twinlog cluster status",
        "twinlog cluster status -o wide",
    ),
    _command(
        "cluster switchover",
        "cli.cluster_change:switchover",
        "hand mastership over, planned; loses nothing",
        "twinlog cluster switchover --to n2",
        "twinlog cluster switchover --to n2 --dry-run",
    ),
    _command(
        "cluster failover",
        "cli.cluster_change:failover",
        "make another node master because the master is gone",
        "twinlog cluster failover --yes",
        "twinlog cluster failover --to n2 --dry-run",
    ),
    _command(
        "cluster history",
        "cli.cluster:history",
        "who was master in which epoch, and why",
        "twinlog cluster history",
    ),
    _command(
        "coordinator start",
        "cli.coordinator:start",
        "run the coordinator in the foreground",
        "twinlog coordinator start",
    ),
    _command(
        "coordinator status",
        "cli.coordinator:status",
        "whether the coordinator answers, and what it holds",
        "twinlog coordinator status",
    ),
    _command(
        "coordinator adopt",
        "cli.coordinator:adopt",
        "let an empty coordinator take nodes that already have a log",
        "twinlog coordinator adopt --dry-run",
        "twinlog coordinator adopt --yes",
    ),
    _command(
        "node start",
        "cli.node:start",
        "run one node of the cluster file in the foreground",
        "twinlog node start n1",
    ),
    _command(
        "node list", "cli.node:list_nodes", "one row per node of the cluster", "twinlog node list"
    ),
    _command("node show", "cli.node:show", "everything about one node", "twinlog node show n1"),
    _command(
        "node stop",
        "cli.node:stop",
        "stop a node cleanly, through the wire",
        "twinlog node stop n3 --yes",
    ),
    _command(
        "topic create",
        "cli.topic:create",
        "make a topic",
        "twinlog topic create orders --queues 8",
    ),
    _command("topic list", "cli.topic:list_topics", "one row per topic", "twinlog topic list"),
    _command(
        "topic show",
        "cli.topic:show",
        "one topic, queue by queue",
        "twinlog topic show orders",
    ),
    _command(
        "message send",
        "cli.message_send:send",
        "store messages from an argument, stdin or a file",
        "twinlog message send orders --body '{\"id\": 42}' --key 42",
        "echo hello | twinlog message send orders",
        "seq 1000 | twinlog message send orders --lines -o jsonl",
    ),
    _command(
        "message read",
        "cli.message:read",
        "read messages of a range",
        "twinlog message read orders",
        "twinlog message read orders --range=-10: --from slave",
        "twinlog message read orders --range @-1h: --format '%q %o %k %v%n'",
    ),
    _command(
        "message tail",
        "cli.message:tail",
        "the last messages, and those that come",
        "twinlog message tail orders",
    ),
    _command(
        "message get",
        "cli.message:get",
        "one message with all its addresses",
        "twinlog message get orders/3@0",
        "twinlog message get log@4096",
    ),
    _command(
        "message find",
        "cli.message_find:find",
        "messages by key or id, newest first",
        "twinlog message find orders --key 42",
        "twinlog message find orders --key 42 --since=-1h --max 5",
    ),
    _command("log info", "cli.log:info", "the segments of a store", "twinlog log info data/n1"),
    _command(
        "log epochs", "cli.log:epochs", "the epochs a store knows", "twinlog log epochs data/n1"
    ),
    _command(
        "log dump",
        "cli.log:dump",
        "every record of a store, in log order",
        "twinlog log dump data/n1 -o jsonl",
    ),
    _command(
        "log find",
        "cli.log_find:find",
        "records by key, offset, id or time",
        "twinlog log find data/n1 --topic orders --key 42",
        "twinlog log find data/n1 --offset 4096",
        "twinlog log find data/n1 --at -1h",
    ),
    _command(
        "log cat",
        "cli.log_find:cat",
        "the bodies of a store's records",
        "twinlog log cat data/n1 --topic orders",
        "twinlog log cat data/n1 --range=-10: --format '%O %k %v%n'",
    ),
    _command(
        "log verify",
        "cli.log:verify",
        "check every byte of a store against its checksums",
        "twinlog log verify data/n1",
    ),
    _command(
        "log repair",
        "cli.log_repair:repair",
        "put a store right, keeping what is cut",
        "twinlog log repair store --dry-run",
        "twinlog log repair store --yes",
    ),
    _command(
        "log recover",
        "cli.log_repair:recover",
        "stop a killed store cleanly, so that RocketMQ may open it",
        "twinlog log recover data/n1",
    ),
    _command(
        "log compare",
        "cli.log:compare",
        "where two stores part",
        "twinlog log compare data/n1 data/n2",
    ),
    _command(
        "store adopt",
        "cli.store:adopt",
        "make what RocketMQ wrote the beginning of a store",
        "twinlog store adopt store --cluster demo --node n1 --dry-run",
        "twinlog store adopt store --cluster demo --node n1 --yes",
    ),
    _command(
        "spark archive",
        "cli.spark_archive:archive",
        "write sealed segments as Parquet files, proven before they count",
        "twinlog spark archive --servers 127.0.0.1:7410 --to archive",
        "twinlog spark archive --path data/n2 --to archive --tell 127.0.0.1:7410",
        "twinlog spark archive --to archive --follow --every 10m",
    ),
    _command(
        "spark restore",
        "cli.spark_archive:restore",
        "write archived segments as log files again, byte for byte",
        "twinlog spark restore --archive archive --to restored",
        "twinlog spark restore --archive archive --check",
    ),
    _command(
        "spark verify",
        "cli.spark:verify",
        "check every byte of a store, its queues and its index, in parallel",
        "twinlog spark verify --path data/n1",
        "twinlog spark verify --path data/n1 --level crc --master spark://spark1:7077",
        "twinlog spark verify --servers 127.0.0.1:7410 --node n2",
    ),
    _command(
        "spark rebuild",
        "cli.spark:rebuild",
        "make queue files and key index anew from the log",
        "twinlog spark rebuild --path data/n1 --check",
        "twinlog spark rebuild --path data/n1 --to rebuilt",
    ),
    _command(
        "spark compare",
        "cli.spark:compare",
        "whether stores hold the same bytes, and the first record that differs",
        "twinlog spark compare --path data/n1 --path data/n2",
        "twinlog spark compare --servers 127.0.0.1:7410",
    ),
    _command(
        "spark stats",
        "cli.spark_reports:stats",
        "ready-made questions: rates, sizes, hot-keys, skew, latency, delivery, failovers",
        "twinlog spark stats rates --path data/n2",
        "twinlog spark stats hot-keys --path data/n2 --topic flights --top 5",
        "twinlog spark stats rates --servers 127.0.0.1:7410 --archive archive",
    ),
    _command(
        "spark trace",
        "cli.spark_reports:trace",
        "everything that carries a key or an id, in time order",
        "twinlog spark trace N725MQ --path data/n2",
        "twinlog spark trace N725MQ --path data/n2 --scan",
    ),
    _command(
        "spark lag",
        "cli.spark_reports:lag",
        "how far each consumer group is behind",
        "twinlog spark lag --path data/n2",
    ),
    _command(
        "spark timeline",
        "cli.spark_reports:timeline",
        "delayed messages: due, delivered, late",
        "twinlog spark timeline --path data/n2",
    ),
    _command(
        "spark sql",
        "cli.spark_reports:sql",
        "a query of yours over the records of a store",
        "twinlog spark sql 'SELECT topic, count(*) AS n FROM messages GROUP BY 1' --path data/n2",
    ),
    _command(
        "spark replay",
        "cli.spark_flow:replay",
        "the records of a topic into a topic again",
        "twinlog spark replay --path data/n2 --topic flights --to-topic again --dry-run",
        "twinlog spark replay --path data/n2 --topic flights --to-topic again --resume state",
    ),
    _command(
        "spark compact",
        "cli.spark_flow:compact",
        "the newest record of each key of a topic",
        "twinlog spark compact --path data/n2 --topic flights --to newest",
        "twinlog spark compact --path data/n2 --topic flights --delete-retention 24h",
    ),
    _command(
        "bench send",
        "cli.bench:send",
        "how fast a producer gets its acknowledgements",
        "twinlog bench send --duration 10s --size 1KiB",
    ),
    _command(
        "bench read",
        "cli.bench:read",
        "how fast a reader gets records",
        "twinlog bench read --duration 5s",
    ),
    _command(
        "bench replicate",
        "cli.bench:replicate",
        "how fast prepared batches reach the slaves",
        "twinlog bench replicate --duration 10s",
    ),
    _command(
        "config init",
        "cli.config:init",
        "write a commented cluster.toml",
        "twinlog config init --local",
    ),
    _command(
        "config check",
        "cli.config:check",
        "every mistake of the cluster file at once",
        "twinlog config check",
    ),
    _command(
        "config show",
        "cli.config:show",
        "every setting with its value and where it comes from",
        "twinlog config show --changed",
    ),
    _command(
        "dev up",
        "cli.dev:up",
        "a coordinator and nodes on this machine",
        "twinlog dev up",
        "twinlog dev up -n 1 --data ./data --background",
    ),
    _command("dev status", "cli.dev:status", "the processes of dev up", "twinlog dev status"),
    _command("dev kill", "cli.dev:kill", "kill -9 one of them", "twinlog dev kill n1"),
    _command("dev start", "cli.dev:start", "start one of them again", "twinlog dev start n1"),
    _command(
        "dev down",
        "cli.dev:down",
        "stop them all",
        "twinlog dev down",
        "twinlog dev down --wipe --yes",
    ),
    _command(
        "dev supervise",
        "cli.dev:supervise",
        "own the processes of one directory",
        "twinlog dev supervise ./data",
        hidden=True,
    ),
    _command(
        "version",
        "cli.about:version",
        "version, Python and kernels in use",
        "twinlog version",
    ),
    _command(
        "help",
        "cli.about:help_command",
        "help of a command, or the exit codes",
        "twinlog help exit",
        "twinlog help message read",
    ),
)

_BY_PATH = {command.path: command for command in COMMANDS}


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
