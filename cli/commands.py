"""Every command: its place in the tree, where its function lives, and examples.

Data, so that help, the reference page, the search for the nearest command and the tests read the
same thing, and so that nothing is imported before it is known which command runs.

An example must work as it stands with a running local cluster; a test looks that every command has
one.  Hidden commands are called by twinlog itself.

Not here: parameters and their help (the functions' signatures and docstrings), looking one up
(`cli.tree`).
"""

from __future__ import annotations

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


COMMANDS = (
    _command(
        "demo",
        "cli.demo.story:demo",
        "start a cluster, load flights, kill the master, fail over, check",
        "twinlog demo",
        "twinlog demo -o json",
        "twinlog demo --keep",
    ),
    _command(
        "cluster status",
        "cli.cluster.status:status",
        "every node with role, end, lag and last contact",
        "twinlog cluster status",
        "twinlog cluster status -o wide",
    ),
    _command(
        "cluster health",
        "cli.cluster.status:health",
        "whether the cluster works, and what to do: exit 0, 1 or 2",
        "twinlog cluster health",
        "twinlog cluster health --watch",
    ),
    _command(
        "cluster switchover",
        "cli.cluster.change:switchover",
        "hand mastership over, as planned; loses nothing",
        "twinlog cluster switchover --to n2",
        "twinlog cluster switchover --to n2 --dry-run",
    ),
    _command(
        "cluster failover",
        "cli.cluster.change:failover",
        "make another node master because the master is gone",
        "twinlog cluster failover --yes",
        "twinlog cluster failover --to n2 --dry-run",
    ),
    _command(
        "cluster history",
        "cli.cluster.status:history",
        "which node was master in which epoch, and why",
        "twinlog cluster history",
    ),
    _command(
        "cluster add",
        "cli.cluster.members:add",
        "add a node to the group as a full member",
        "twinlog cluster add n4 --dry-run",
        "twinlog cluster add n4 --priority 10 --yes",
    ),
    _command(
        "cluster remove",
        "cli.cluster.members:remove",
        "remove a node from the group; its data stays",
        "twinlog cluster remove n4 --dry-run",
        "twinlog cluster remove n4 --yes",
    ),
    _command(
        "cluster set",
        "cli.cluster.members:change",
        "change a fact of the group: in_sync_min, ack, failover, after_power_loss",
        "twinlog cluster set in_sync_min 2",
        "twinlog cluster set ack durable --yes",
    ),
    _command(
        "coordinator start",
        "cli.cluster.coordinator:start",
        "run the coordinator in the foreground",
        "twinlog coordinator start",
    ),
    _command(
        "coordinator status",
        "cli.cluster.coordinator:status",
        "whether the coordinator answers, and what it holds",
        "twinlog coordinator status",
    ),
    _command(
        "coordinator adopt",
        "cli.cluster.coordinator:adopt",
        "let an empty coordinator take nodes that already have a log",
        "twinlog coordinator adopt --dry-run",
        "twinlog coordinator adopt --yes",
    ),
    _command(
        "coordinator recover",
        "cli.cluster.recovery:recover",
        "make a lost register again from what the nodes remember",
        "twinlog coordinator recover --dry-run",
        "twinlog coordinator recover --without n3 --yes",
    ),
    _command(
        "coordinator vouch",
        "cli.cluster.recovery:vouch",
        "speak for replicas that cannot report after the coordinator's start",
        "twinlog coordinator vouch n2 --dry-run",
        "twinlog coordinator vouch n2 --why 'its machine burned' --yes",
    ),
    _command(
        "coordinator clear-alarm",
        "cli.cluster.recovery:clear_alarm",
        "make a read-only coordinator work again after a false alarm",
        "twinlog coordinator clear-alarm --dry-run",
        "twinlog coordinator clear-alarm --yes",
    ),
    _command(
        "node start",
        "cli.cluster.node:start",
        "run one node of the cluster file in the foreground",
        "twinlog node start n1",
    ),
    _command(
        "node list",
        "cli.cluster.node:list_nodes",
        "one row per node of the cluster",
        "twinlog node list",
    ),
    _command(
        "node show", "cli.cluster.node:show", "everything about one node", "twinlog node show n1"
    ),
    _command(
        "node scrub",
        "cli.cluster.node:scrub",
        "how far a node has looked for damage in its log; begin a look",
        "twinlog node scrub n2",
        "twinlog node scrub n2 --start",
    ),
    _command(
        "node stop",
        "cli.cluster.node:stop",
        "stop a node cleanly, through the wire",
        "twinlog node stop n3 --yes",
    ),
    _command(
        "topic create",
        "cli.cluster.topic:create",
        "create a topic",
        "twinlog topic create orders --queues 8",
    ),
    _command(
        "topic list", "cli.cluster.topic:list_topics", "one row per topic", "twinlog topic list"
    ),
    _command(
        "topic show",
        "cli.cluster.topic:show",
        "one topic, queue by queue",
        "twinlog topic show orders",
    ),
    _command(
        "message send",
        "cli.message.send:send",
        "store messages from an argument, stdin or a file",
        "twinlog message send orders --body '{\"id\": 42}' --key 42",
        "echo hello | twinlog message send orders",
        "seq 1000 | twinlog message send orders --lines -o jsonl",
    ),
    _command(
        "message read",
        "cli.message.read:read",
        "read messages of a range",
        "twinlog message read orders",
        "twinlog message read orders --range=-10: --from slave",
        "twinlog message read orders --range @-1h: --format '%q %o %k %v%n'",
    ),
    _command(
        "message tail",
        "cli.message.read:tail",
        "the last messages, then new ones as they arrive",
        "twinlog message tail orders",
    ),
    _command(
        "message get",
        "cli.message.read:get",
        "one message with all its addresses",
        "twinlog message get orders/3@0",
        "twinlog message get log@4096",
    ),
    _command(
        "message find",
        "cli.message.find:find",
        "messages by key or id, newest first",
        "twinlog message find orders --key 42",
        "twinlog message find orders --key 42 --since=-1h --max 5",
    ),
    _command(
        "message consume",
        "cli.message.consume:consume",
        "handle the messages of a group, one command for each",
        "twinlog message consume orders --group billing -n 10",
        "twinlog message consume orders --group billing --peek",
        "twinlog message consume orders --group billing --exec ./handle.sh --follow",
    ),
    _command(
        "group list",
        "cli.group.views:list_groups",
        "one row per group: members, and what is left to handle",
        "twinlog group list",
        "twinlog group list --watch",
    ),
    _command(
        "group show",
        "cli.group.views:show",
        "one group, queue by queue",
        "twinlog group show billing",
    ),
    _command(
        "group create",
        "cli.group.changes:create",
        "create a group; without it the first member does",
        "twinlog group create billing --start start",
        "twinlog group create billing --attempts 5 --retry 1s,10s,1m --invisible 30s",
        "twinlog group create eu --topic orders --where \"region = 'EU'\"",
    ),
    _command(
        "group alter",
        "cli.group.changes:alter",
        "change a group's settings",
        "twinlog group alter billing --attempts 3 --dry-run",
    ),
    _command(
        "group delete",
        "cli.group.changes:delete",
        "delete a group and its positions",
        "twinlog group delete billing --dry-run",
        "twinlog group delete billing --yes",
    ),
    _command(
        "group reset",
        "cli.group.positions:reset",
        "have a group handle messages again, or leave them out",
        "twinlog group reset billing --topic orders --to @-1h --dry-run",
        "twinlog group reset billing --topic orders --to start --yes",
    ),
    _command(
        "group skip",
        "cli.group.positions:skip",
        "leave out the next messages of one queue",
        "twinlog group skip billing --topic orders --queue 0 --dry-run",
        "twinlog group skip billing --topic orders --queue 0 --count 2 --yes",
    ),
    _command(
        "group members",
        "cli.group.views:members",
        "who handles a group's messages now",
        "twinlog group members billing",
    ),
    _command(
        "group wait",
        "cli.group.views:wait",
        "wait until a group has handled its messages",
        "twinlog group wait billing --lag 0 --timeout 60s",
    ),
    _command(
        "dlq list",
        "cli.group.dead_letters:list_letters",
        "the groups with dead letters",
        "twinlog dlq list",
    ),
    _command(
        "dlq show",
        "cli.group.dead_letters:show",
        "the dead letters of a group",
        "twinlog dlq show billing",
    ),
    _command(
        "dlq replay",
        "cli.group.dead_letters:replay",
        "send dead letters again, each once",
        "twinlog dlq replay billing --dry-run",
        "twinlog dlq replay billing --yes",
    ),
    _command(
        "dlq drop",
        "cli.group.dead_letters:drop",
        "leave dead letters to retention",
        "twinlog dlq drop billing --count 1 --yes",
    ),
    _command(
        "log info", "cli.log.info:info", "the segments of a store", "twinlog log info data/n1"
    ),
    _command(
        "log epochs",
        "cli.log.epochs:epochs",
        "the epochs a store knows",
        "twinlog log epochs data/n1",
    ),
    _command(
        "log dump",
        "cli.log.dump:dump",
        "every record of a store, in log order",
        "twinlog log dump data/n1 -o jsonl",
    ),
    _command(
        "log find",
        "cli.log.find:find",
        "records by key, offset, id or time",
        "twinlog log find data/n1 --topic orders --key 42",
        "twinlog log find data/n1 --offset 4096",
        "twinlog log find data/n1 --at -1h",
    ),
    _command(
        "log cat",
        "cli.log.find:cat",
        "print the bodies of a store's records",
        "twinlog log cat data/n1 --topic orders",
        "twinlog log cat data/n1 --range=-10: --format '%O %k %v%n'",
    ),
    _command(
        "log verify",
        "cli.log.verify:verify",
        "check every byte of a store against its checksums",
        "twinlog log verify data/n1",
    ),
    _command(
        "log repair",
        "cli.log.repair:repair",
        "repair a store, keeping what is cut",
        "twinlog log repair store --dry-run",
        "twinlog log repair store --yes",
    ),
    _command(
        "log recover",
        "cli.log.repair:recover",
        "stop a killed store cleanly, so that RocketMQ can open it",
        "twinlog log recover data/n1",
    ),
    _command(
        "log compare",
        "cli.log.compare:compare",
        "where the logs of two stores differ",
        "twinlog log compare data/n1 data/n2",
    ),
    _command(
        "store adopt",
        "cli.log.adopt:adopt",
        "turn a RocketMQ store into the beginning of a twinlog store",
        "twinlog store adopt store --cluster demo --node n1 --dry-run",
        "twinlog store adopt store --cluster demo --node n1 --yes",
    ),
    _command(
        "spark archive",
        "cli.spark.archive:archive",
        "write sealed segments as Parquet files, verified before they count",
        "twinlog spark archive --servers 127.0.0.1:7410 --to archive",
        "twinlog spark archive --path data/n2 --to archive --tell 127.0.0.1:7410",
        "twinlog spark archive --to archive --follow --every 10m",
    ),
    _command(
        "spark restore",
        "cli.spark.archive:restore",
        "restore archived segments as log files, byte for byte",
        "twinlog spark restore --archive archive --to restored",
        "twinlog spark restore --archive archive --check",
    ),
    _command(
        "spark verify",
        "cli.spark.jobs:verify",
        "check every byte of a store, its queues and its index, in parallel",
        "twinlog spark verify --path data/n1",
        "twinlog spark verify --path data/n1 --level crc --master spark://spark1:7077",
        "twinlog spark verify --servers 127.0.0.1:7410 --node n2",
    ),
    _command(
        "spark rebuild",
        "cli.spark.jobs:rebuild",
        "rebuild queue files and key index from the log",
        "twinlog spark rebuild --path data/n1 --check",
        "twinlog spark rebuild --path data/n1 --to rebuilt",
    ),
    _command(
        "spark compare",
        "cli.spark.jobs:compare",
        "whether stores hold the same bytes, and the first record that differs",
        "twinlog spark compare --path data/n1 --path data/n2",
        "twinlog spark compare --servers 127.0.0.1:7410",
    ),
    _command(
        "spark stats",
        "cli.spark.reports:stats",
        "ready-made questions: rates, sizes, hot-keys, skew, latency, delivery, failovers",
        "twinlog spark stats rates --path data/n2",
        "twinlog spark stats hot-keys --path data/n2 --topic flights --top 5",
        "twinlog spark stats rates --servers 127.0.0.1:7410 --archive archive",
    ),
    _command(
        "spark trace",
        "cli.spark.reports:trace",
        "everything with a key or an id, in time order",
        "twinlog spark trace N725MQ --path data/n2",
        "twinlog spark trace N725MQ --path data/n2 --scan",
    ),
    _command(
        "spark lag",
        "cli.spark.reports:lag",
        "how far each consumer group is behind",
        "twinlog spark lag --path data/n2",
    ),
    _command(
        "spark timeline",
        "cli.spark.reports:timeline",
        "delayed messages: due, delivered, late",
        "twinlog spark timeline --path data/n2",
    ),
    _command(
        "spark sql",
        "cli.spark.reports:sql",
        "run your own query over the records of a store",
        "twinlog spark sql 'SELECT topic, count(*) AS n FROM messages GROUP BY 1' --path data/n2",
    ),
    _command(
        "spark replay",
        "cli.spark.replay:replay",
        "send the records of a topic to a topic again",
        "twinlog spark replay --path data/n2 --topic flights --to-topic again --dry-run",
        "twinlog spark replay --path data/n2 --topic flights --to-topic again --resume state",
    ),
    _command(
        "spark compact",
        "cli.spark.compact:compact",
        "the newest record of each key of a topic",
        "twinlog spark compact --path data/n2 --topic flights --to newest",
        "twinlog spark compact --path data/n2 --topic flights --delete-retention 24h",
    ),
    _command(
        "bench send",
        "cli.bench.benchmarks:send",
        "how fast a producer gets its acknowledgements",
        "twinlog bench send --duration 10s --size 1KiB",
    ),
    _command(
        "bench read",
        "cli.bench.benchmarks:read",
        "how fast a reader gets records",
        "twinlog bench read --duration 5s",
    ),
    _command(
        "bench replicate",
        "cli.bench.benchmarks:replicate",
        "how fast prepared batches reach the slaves",
        "twinlog bench replicate --duration 10s",
    ),
    _command(
        "drill list",
        "cli.drill.commands:list_drills",
        "the drills that come with twinlog",
        "twinlog drill list",
    ),
    _command(
        "drill show",
        "cli.drill.commands:show",
        "what a drill does and promises, and its file",
        "twinlog drill show kill-master",
    ),
    _command(
        "drill run",
        "cli.drill.commands:run",
        "let things go wrong on a cluster of its own, and judge: exit 0, 1 or 2",
        "twinlog drill run kill-master",
        "twinlog drill run kill-master --times 30",
        "twinlog drill run all",
        "twinlog drill run switchover --cluster cluster.toml --yes",
    ),
    _command(
        "drill report",
        "cli.drill.commands:report",
        "write the page of a drill again",
        "twinlog drill report drills/kill-master-20261121-120000",
    ),
    _command(
        "drill replay",
        "cli.drill.commands:replay",
        "judge a stored history again",
        "twinlog drill replay drills/kill-master-20261121-120000",
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
        "cli.dev.local_cluster:up",
        "a coordinator and nodes on this machine",
        "twinlog dev up",
        "twinlog dev up -n 1 --data ./data --background",
    ),
    _command(
        "dev status",
        "cli.dev.local_cluster:status",
        "the processes of dev up",
        "twinlog dev status",
    ),
    _command(
        "dev kill",
        "cli.dev.local_cluster:kill",
        "kill one of them with SIGKILL",
        "twinlog dev kill n1",
    ),
    _command(
        "dev start",
        "cli.dev.local_cluster:start",
        "start one of them again",
        "twinlog dev start n1",
    ),
    _command(
        "dev down",
        "cli.dev.local_cluster:down",
        "stop them all",
        "twinlog dev down",
        "twinlog dev down --wipe --yes",
    ),
    _command(
        "dev supervise",
        "cli.dev.local_cluster:supervise",
        "run the processes of one directory",
        "twinlog dev supervise ./data",
        hidden=True,
    ),
    _command(
        "version",
        "cli.help.about:version",
        "version, Python and kernels in use",
        "twinlog version",
    ),
    _command(
        "completion",
        "cli.help.completion:completion",
        "completion of commands for bash, zsh and fish",
        "twinlog completion bash",
    ),
    _command(
        "help",
        "cli.help.about:help_command",
        "help of a command, or the exit codes",
        "twinlog help exit",
        "twinlog help message read",
    ),
)
