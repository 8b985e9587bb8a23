"""A deterministic world for the production code: every disk, clock and wire is ours.

Driver, Store and Register are the real ones. A seed decides everything else: sizes, settings,
faults and their rates (`tests.sim.swarm`), the schedule of events (`tests.sim.schedule`), delays
and cuts (`tests.sim.machines.network`), what a crash takes from a disk (`tests.fakes.disk`), what
users do (`tests.sim.users.clients`, `tests.sim.users.readers`, `tests.sim.users.operator`). A judge
who sees all of it (`tests.sim.judge.ledger`, `tests.sim.judge.contents`, `tests.sim.judge.layout`)
holds the run to named invariants (`tests.sim.invariants`). Mutants show that the judge is awake
(`tests.sim.mutants`).

    python -m tests.sim --seed 7 --trace       one run, one line per event
    python -m tests.sim --seeds 0:1000         many; the failing ones with their replay command
    python -m tests.sim.mutants                the table of mutants

    python -m tests.sim --seed 7 --shrink      makes a failing run small

What chance meets too seldom is told as a story (`tests.sim.stories.tales`).

Not modelled: torn sectors inside a disk page (smaller pages stand for them), disks that lie about a
flush, etcd, a node's client server and HTTP, the real SQLite, real threads: a job runs at one
instant between its order and its answer.
"""
