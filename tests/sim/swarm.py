"""What one seed turns on: sizes, settings, and a random subset of faults with random rates.

Swarm testing: a run that enables everything at a middling rate finds less than many runs that each
enable a few things hard. A quarter of the seeds have no faults at all, so that plain progress is
always seen. Rates are events per simulated second over the whole world.

Not here: how a fault is carried out (`tests.sim.faults`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from node.leases.limits import GroupLimits
from tests.sim.limits import LIMITS
from tests.sim.machines.network import Weather

FAULTS = {
    "kill": (0.02, 0.4),
    "power": (0.02, 0.3),
    "crash_in_call": (0.02, 0.4),
    "pause": (0.02, 0.3),
    "partition": (0.02, 0.4),
    "one_way": (0.02, 0.4),
    "coordinator_cut": (0.02, 0.3),
    "coordinator_crash": (0.02, 0.2),
    "stream_cut": (0.05, 1.0),
    "disk_full": (0.02, 0.15),
    "io_error": (0.01, 0.1),
    "wipe": (0.01, 0.06),
    "old_disk": (0.01, 0.06),
    "restart": (0.02, 0.3),
    "register_restored": (0.01, 0.06),
    "failover": (0.02, 0.3),
    "switchover": (0.02, 0.3),
    "topic": (0.02, 0.2),
    "all_killed": (0.01, 0.08),
    "blackout": (0.01, 0.08),
    "suspend": (0.02, 0.2),
    "wall_jump": (0.02, 0.2),
    "rot": (0.05, 0.5),
    "rot_asleep": (0.02, 0.15),
    "register_lost": (0.01, 0.06),
    "register_rolled_back": (0.01, 0.06),
    "unkind": (0.05, 0.5),
    "crowded": (0.05, 0.5),
    "isolate": (0.02, 0.3),
}
"""Fault and the range of its rate, events a second."""

ACKS = ("written", "flushed", "replicated", "confirmed")
FLUSHES = ("sync", "async", "async-buffered")
QUALITIES = ("received", "durable")
LATER = frozenset(
    (
        "suspend",
        "wall_jump",
        "rot",
        "rot_asleep",
        "register_lost",
        "register_rolled_back",
        "unkind",
        "crowded",
        "isolate",
    )
)
"""Faults that are drawn apart, so that a seed keeps the others when one is added here."""


@dataclass(slots=True)
class Plan:
    """The circumstances of one run.

    Attributes:
        seed: As given.
        nodes: Names.
        first: The node configured as the first master, if any.
        in_sync_min: Least in-sync.
        quality: ``received`` or ``durable``.
        failover: ``manual``: the operator gives the orders; ``automatic``: the coordinator, too.
        flush: ``sync``, ``async`` or ``async-buffered``.
        segment_size: Bytes of a log file.
        page_size: Bytes of a disk page.
        rates: Fault to events a second; empty in a run without faults.
        weather: The network while faults go on.
        producers: How many producers, each with its acknowledge mode.
        pause_between_sends: Mean seconds between two sections of one producer.
        records_max: Most records in a section.
        body_max: Largest body, bytes.
        disk_delay: Usual duration of a disk job, seconds.
        disk_slow: Longest duration of a disk job, seconds.
        wire: Frames go through the wire encoding.
        keep_files: Files of the log that are kept; 0 keeps all.
        batches: There is a topic whose records may hold several messages.
        lights: Records of other topics go to light queues as well.
        append_deadline: How long an append waits before its outcome is unknown, seconds; a long
            one waits across changes of master.
        slice_bytes: So much is entered into the queues in one turn.
        flushes: Nodes that flush in another mode.
        qualities: Nodes that are configured with another quality; the group has the one that came
            first.
        levels: Nodes of an older release, with the highest level that they know (R74).
        limits: Limits of production that are smaller than usual, by name (`tests.sim.limits`).
        drift: Each node's clock is fast or slow by up to this share.
        absent_seconds: How long retention waits for a slave that is away.
        after_power_loss: ``wait`` or ``best``.
        members: Consumers, in two groups; one more deals with dead letters.
        ordered: The second group keeps the order of its queues.
        fast_share: Share of members that take leases before they are confirmed.
        long_share, extend_share: Share of bodies that take about as long as their lease, and of
            those that ask for a longer one.
        extend_late: They ask in the middle of the body, not at its beginning.
        disturbance: How much more often than usual members are disturbed and orders given.
        delayed: Share of sections that wait for a delay level, or, with ``timed``, for a time.
        deletions: How often a topic is deleted and made again: probability, about twice a second.
        transactions: There are transactions, and nothing else that waits.
        span_max, runs_max, dead_max: Limits of groups that are smaller than usual; 0: the usual.
    """

    seed: int
    nodes: tuple[str, ...] = ("n1", "n2", "n3")
    first: str | None = "n1"
    in_sync_min: int = 2
    quality: str = "received"
    failover: str = "manual"
    flush: str = "async"
    segment_size: int = 32 * 1024
    page_size: int = 4096
    rates: dict[str, float] = field(default_factory=dict)
    weather: Weather = field(default_factory=Weather)
    producers: tuple[str, ...] = ("confirmed",)
    pause_between_sends: float = 0.3
    records_max: int = 3
    body_max: int = 300
    disk_delay: float = 0.0005
    disk_slow: float = 0.0005
    wire: bool = False
    keep_files: int = 0
    batches: bool = False
    lights: bool = False
    slice_bytes: int = 4 * 1024 * 1024
    append_deadline: float = 2.0
    flushes: dict[str, str] = field(default_factory=dict)
    qualities: dict[str, str] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    drift: float = 0.0
    absent_seconds: float = float("inf")
    after_power_loss: str = "wait"
    members: int = 0
    ordered: bool = False
    fast_share: float = 0.0
    long_share: float = 0.03
    extend_share: float = 0.1
    extend_late: bool = False
    disturbance: float = 1.0
    delayed: float = 0.0
    timed: bool = False
    deletions: float = 0.0
    transactions: bool = False
    span_max: int = 0
    runs_max: int = 0
    dead_max: int = 0

    @property
    def group_limits(self) -> GroupLimits:
        """Limits of groups."""
        usual = GroupLimits(invisible_ms=2_500, attempts=4)
        return replace(
            usual,
            span_max=self.span_max or usual.span_max,
            runs_max=self.runs_max or usual.runs_max,
            dead_max=self.dead_max or usual.dead_max,
        )


PROFILES = ("", "groups", "delays", "timers", "deletions", "transactions")
"""What runs are about: everything, or groups, delayed messages of either kind, a topic that is
deleted and made again, or transactions, above all."""


def draw(seed: int, profile: str = "") -> Plan:
    """Draw the plan of a seed."""
    plan = _drawn(seed)
    _groups(plan, dense=profile == "groups")
    if profile == "deletions":
        plan.deletions = Random(f"deletions {seed}").choice((0.1, 0.3, 0.8))
    if profile == "transactions":
        plan.transactions, plan.members = True, 0
    plan.timed = profile == "timers"
    if profile in ("delays", "timers"):
        plan.members, plan.delayed = (
            max(plan.members, 1),
            Random(f"delays {seed}").choice((0.2, 0.6)),
        )
    return plan


def _groups(plan: Plan, *, dense: bool) -> None:
    """Draw members; apart from everything else, so that other runs stay as they were."""
    rng = Random(f"groups {plan.seed}")
    if rng.random() >= 0.12 and not dense:
        return
    plan.members = rng.randint(3, 6) if dense else rng.randint(2, 4)
    plan.fast_share = rng.choice((0.0, 0.0, 0.0, 0.5))
    plan.disturbance = rng.choice((0.5, 1.0, 3.0))
    plan.ordered = Random(f"order {plan.seed}").random() < 0.5
    if rng.random() < 0.3:
        plan.span_max = rng.choice((4, 20))
    if rng.random() < 0.2:
        plan.runs_max = rng.choice((2, 6))
    if rng.random() < 0.3:
        plan.dead_max = rng.choice((1, 3))
    if dense and rng.random() < 0.3:
        plan.batches = True
    if dense and rng.random() < 0.3:
        plan.lights = True


def _drawn(seed: int) -> Plan:
    rng = Random(f"plan {seed}")
    count = rng.choices((3, 4, 5), (7, 2, 1))[0]
    plan = Plan(seed, nodes=tuple(f"n{i + 1}" for i in range(count)))
    plan.first = rng.choice(("n1", "n1", None))
    plan.in_sync_min = rng.choices((1, 2, 3), (2, 7, 1 if count > 3 else 0))[0]
    plan.quality = rng.choice(("received", "durable"))
    plan.failover = Random(f"failover {seed}").choice(("manual", "automatic"))
    plan.flush = rng.choice(("sync", "async"))
    if plan.flush == "async" and Random(f"pool {seed}").random() < 0.4:
        plan.flush = "async-buffered"  # drawn apart: other seeds keep their plans
    plan.segment_size = rng.choice((16, 32, 64)) * 1024
    plan.page_size = rng.choice((512, 4096))
    plan.producers = tuple(
        "confirmed" if rng.random() < 0.7 else rng.choice(ACKS) for _ in range(rng.randint(1, 3))
    )
    plan.pause_between_sends = rng.choice((0.15, 0.3, 0.6)) * len(plan.producers)
    plan.records_max = rng.choice((1, 3, 6))
    plan.body_max = rng.choice((40, 300, 1500))
    plan.wire = rng.random() < 0.2
    retention = Random(f"retention {seed}")
    if retention.random() < 0.3:
        plan.keep_files = retention.choice((1, 2, 4))
        plan.segment_size = 16 * 1024
    plan.batches = Random(f"batches {seed}").random() < 0.15
    plan.lights = Random(f"lights {seed}").random() < 0.15
    slices = Random(f"slices {seed}")
    if slices.random() < 0.2:
        plan.slice_bytes = slices.choice((1024, 4096, 16 * 1024))
    if Random(f"deadline {seed}").random() < 0.3:
        plan.append_deadline = 30.0  # the default of production
    if Random(f"burst {seed}").random() < 0.15:
        plan.pause_between_sends /= 6  # windows are full when something fails
    _settle(plan)
    if rng.random() < 0.25:
        return plan
    wanted = rng.choice((0.15, 0.3, 0.6))
    later = Random(f"later {seed}")
    for name, (low, high) in FAULTS.items():
        chance = later if name in LATER else rng
        if chance.random() < wanted:
            plan.rates[name] = low * (high / low) ** chance.random()
    plan.weather = Weather(
        delay=rng.choice((0.0003, 0.002, 0.02)),
        slow_share=rng.choice((0.0, 0.0, 0.02, 0.1)),
        slow_delay=rng.choice((0.1, 1.0, 5.0)),
        lost_share=rng.choice((0.0, 0.0, 0.02, 0.1)),
        cut_share=rng.choice((0.0, 0.0, 0.001, 0.01)),
        damage_share=rng.choice((0.0, 0.0, 0.002, 0.02)),
    )
    if rng.random() < 0.3:
        plan.disk_slow = rng.choice((0.02, 0.3, 2.0))
    return plan


def _settle(plan: Plan) -> None:
    """Draw what machines and operators of one group do not agree on, each apart from the others."""
    seed = plan.seed
    group = Random(f"group {seed}")
    if group.random() < 0.2:
        plan.nodes = tuple(f"n{i + 1}" for i in range(group.choice((2, 4))))
        plan.in_sync_min = group.choice((1, 2, 2))
    mixed = Random(f"mixed {seed}")
    if mixed.random() < 0.2:
        plan.flushes = {name: mixed.choice(FLUSHES) for name in plan.nodes}
    if mixed.random() < 0.15:
        plan.qualities = {name: mixed.choice(QUALITIES) for name in plan.nodes}
    small = Random(f"limits {seed}")
    if small.random() < 0.3:
        some = small.sample(sorted(LIMITS), small.randint(1, len(LIMITS)))
        plan.limits = {name: small.choice(LIMITS[name]) for name in some}
    clocks = Random(f"clocks {seed}")
    if clocks.random() < 0.3:
        plan.drift = clocks.choice((0.0001, 0.01, 0.05))
    if plan.keep_files and small.random() < 0.5:
        plan.absent_seconds = small.choice((1.0, 4.0))
    plan.after_power_loss = small.choice(("wait", "best"))
