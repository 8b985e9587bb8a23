"""A cluster, its processes and who may use it: cluster, coordinator, node, topic, user, rule."""

from __future__ import annotations

from cli.commands.command import command

CLUSTER = (
    command(
        "cluster status",
        "cli.cluster.status:status",
        "every node with role, end, lag and last contact",
        "twinlog cluster status",
        "twinlog cluster status -o wide",
    ),
    command(
        "cluster health",
        "cli.cluster.status:health",
        "whether the cluster works, and what to do: exit 0, 1 or 2",
        "twinlog cluster health",
        "twinlog cluster health --watch",
    ),
    command(
        "cluster top",
        "cli.cluster.top:top",
        "what each node does now, and what it waits for",
        "twinlog cluster top --watch",
    ),
    command(
        "cluster switchover",
        "cli.cluster.change:switchover",
        "hand mastership over, as planned; loses nothing",
        "twinlog cluster switchover --to n2",
        "twinlog cluster switchover --to n2 --dry-run",
    ),
    command(
        "cluster failover",
        "cli.cluster.change:failover",
        "make another node master because the master is gone",
        "twinlog cluster failover --yes",
        "twinlog cluster failover --to n2 --dry-run",
    ),
    command(
        "cluster history",
        "cli.cluster.status:history",
        "which node was master in which epoch, and why",
        "twinlog cluster history",
    ),
    command(
        "cluster add",
        "cli.cluster.members:add",
        "add a node to the group, as a full member or as a learner",
        "twinlog cluster add n4 --priority 10 --yes",
        "twinlog cluster add n4 --learner",
    ),
    command(
        "cluster promote",
        "cli.cluster.members:promote",
        "make a learner a full member",
        "twinlog cluster promote n4 --dry-run",
        "twinlog cluster promote n4 --yes",
    ),
    command(
        "cluster remove",
        "cli.cluster.members:remove",
        "remove a node from the group; its data stays",
        "twinlog cluster remove n4 --dry-run",
        "twinlog cluster remove n4 --yes",
    ),
    command(
        "cluster set",
        "cli.cluster.members:change",
        "change a fact of the group: in_sync_min, ack, failover, after_power_loss",
        "twinlog cluster set in_sync_min 2",
        "twinlog cluster set ack durable --yes",
    ),
    command(
        "cluster pause",
        "cli.cluster.holds:pause",
        "pause automatic failover for a while",
        "twinlog cluster pause --for 2h --why 'new switches' --yes",
    ),
    command(
        "cluster resume",
        "cli.cluster.holds:resume",
        "end the pause of automatic failover",
        "twinlog cluster resume",
    ),
    command(
        "cluster maintenance",
        "cli.cluster.holds:maintenance",
        "have a node hand over, and not be elected until it is released",
        "twinlog cluster maintenance n2 --yes",
        "twinlog cluster maintenance n2 --off",
    ),
    command(
        "coordinator start",
        "cli.cluster.coordinator:start",
        "run the coordinator in the foreground",
        "twinlog coordinator start",
    ),
    command(
        "coordinator status",
        "cli.cluster.coordinator:status",
        "whether the coordinator answers, and what it holds",
        "twinlog coordinator status",
    ),
    command(
        "coordinator adopt",
        "cli.cluster.coordinator:adopt",
        "let an empty coordinator take nodes that already have a log",
        "twinlog coordinator adopt --dry-run",
        "twinlog coordinator adopt --yes",
    ),
    command(
        "coordinator recover",
        "cli.cluster.recovery:recover",
        "make a lost register again from what the nodes remember",
        "twinlog coordinator recover --dry-run",
        "twinlog coordinator recover --without n3 --yes",
    ),
    command(
        "coordinator vouch",
        "cli.cluster.recovery:vouch",
        "speak for replicas that cannot report after the coordinator's start",
        "twinlog coordinator vouch n2 --dry-run",
        "twinlog coordinator vouch n2 --why 'its machine burned' --yes",
    ),
    command(
        "coordinator clear-alarm",
        "cli.cluster.recovery:clear_alarm",
        "make a read-only coordinator work again after a false alarm",
        "twinlog coordinator clear-alarm --dry-run",
        "twinlog coordinator clear-alarm --yes",
    ),
    command(
        "node start",
        "cli.cluster.node:start",
        "run one node of the cluster file in the foreground",
        "twinlog node start n1",
    ),
    command(
        "node list",
        "cli.cluster.node:list_nodes",
        "one row per node of the cluster",
        "twinlog node list",
    ),
    command(
        "node show", "cli.cluster.node:show", "everything about one node", "twinlog node show n1"
    ),
    command(
        "node scrub",
        "cli.cluster.node:scrub",
        "how far a node has looked for damage in its log; begin a look",
        "twinlog node scrub n2",
        "twinlog node scrub n2 --start",
    ),
    command(
        "node snapshot",
        "cli.cluster.snapshot:snapshot",
        "keep a running node's store in a folder, for backups",
        "twinlog node snapshot n2 /backup/n2-monday",
    ),
    command(
        "node restore",
        "cli.cluster.snapshot:restore",
        "make a node's data directory from a snapshot",
        "twinlog node restore n2 /backup/n2-monday --dry-run",
        "twinlog node restore n2 /backup/n2-monday",
    ),
    command(
        "node stop",
        "cli.cluster.node:stop",
        "stop a node cleanly, through the wire",
        "twinlog node stop n3 --yes",
    ),
    command(
        "topic create",
        "cli.cluster.topic:create",
        "create a topic",
        "twinlog topic create orders --queues 8",
    ),
    command(
        "topic list", "cli.cluster.topic:list_topics", "one row per topic", "twinlog topic list"
    ),
    command(
        "topic alter",
        "cli.cluster.topic:alter",
        "change queues, permission and quotas of a topic",
        "twinlog topic alter orders --queues 16 --dry-run",
        "twinlog topic alter orders --write-queues 4 --yes",
        "twinlog topic alter orders --perm r --yes",
        "twinlog topic alter orders --records-per-second 1000 --bytes-per-second 5MiB --yes",
    ),
    command(
        "topic delete",
        "cli.cluster.topic:delete",
        "delete a topic with its messages",
        "twinlog topic delete orders --dry-run",
        "twinlog topic delete orders --yes",
    ),
    command(
        "topic show",
        "cli.cluster.topic:show",
        "one topic, queue by queue",
        "twinlog topic show orders",
    ),
)

ACCESS = (
    command(
        "user add",
        "cli.access.users:add",
        "make a user",
        "twinlog user add alice --team shop --generate",
        "twinlog user add billing --certificate",
    ),
    command("user list", "cli.access.users:list_users", "one row per user", "twinlog user list"),
    command(
        "user remove",
        "cli.access.users:remove",
        "remove a user and the rules that name it",
        "twinlog user remove alice",
    ),
    command(
        "user password",
        "cli.access.users:password",
        "give a user another password",
        "twinlog user password alice --generate",
    ),
    command(
        "rule add",
        "cli.access.rules:add",
        "allow a user or a team something",
        "twinlog rule add alice read topic:orders",
        "twinlog rule add @shop write 'topic:orders-*'",
        "twinlog rule add bob operate cluster",
    ),
    command("rule list", "cli.access.rules:list_rules", "one row per rule", "twinlog rule list"),
    command(
        "rule remove",
        "cli.access.rules:remove",
        "take a rule back",
        "twinlog rule remove alice read topic:orders",
    ),
    command(
        "access check",
        "cli.access.rules:check",
        "what a user may do with something, and why",
        "twinlog access check alice topic:orders",
    ),
    command(
        "access init",
        "cli.access.secret:init",
        "make the file with the operator's password",
        "twinlog access init",
    ),
)
