"""Replication: one master, many slaves, one history.

How a node gets a role: every process begins *fenced* and registers at the coordinator. The group
state (``register.group_state``) in the answer is first fsynced as a promise, then acted upon: the
node it names leads, the others dial the leader, and without a leader the nodes that have everything
stand for election in turn. The diagram of roles is drawn from ``core.roles.ROLES``.

How a slave joins: it sends HELLO with its epoch history; the master answers with the *consistent
point*, where both histories part, and a chain of CRCs below it; the slave computes the point
itself, compares, cuts the bytes that the master never had, and sends READY. Then whole batches are
streamed, and each is acknowledged once it is stored with its entry. One second later the master
proposes the slave for the in-sync set; the confirm offset waits for it from that moment on.

What runs where:

* ``core``: a replica's decisions, pure: ``replica`` (roles), ``leading`` with ``in_sync``,
  ``waiters``, ``switchover`` and ``master_session``; ``following``; ``peer_checks`` (checks of
  peers' messages); ``promises``; ``register_questions`` (calls to the register);
* ``register``: the register itself, pure: ``group_state``, ``operations``, ``rules``;
* ``driver``: executes the core's commands on a store; no clock, no socket;
* ``coordinator``, ``net``, ``replica_service``: processes, sockets, threads.

Each check that the safety of the protocol depends on is a small function of its own, so that the
simulator can remove it by name and show that something breaks:

    rule  what must be true                            function
    R27   confirm needs min_isr recorded members       core.master.in_sync.InSyncSet.may_confirm
    R28   confirm needs the epoch record               core.master.in_sync.InSyncSet.covers_epoch
    R30   both sets count while a proposal is open     core.master.in_sync.InSyncSet.counted_names
    R31   only a newer revision settles a proposal     core.master.in_sync.InSyncSet.settles
    R29   acks count for the registered session        core.master.in_sync.InSyncSet.is_of_session
    R29   acks count when they show the revision       core.master.in_sync.InSyncSet.shows_revision
    R32   joining needs all that is confirmed          core.master.in_sync.InSyncSet.has_confirmed
    R32   joining needs the epoch record               core.master.in_sync.InSyncSet.has_epoch
    R27   an ack is worth what the quality says        core.master.slave_links.SlaveLinks.quality_of
    R27   the own part, by the same quality            core.context.Context.own_end
    R36   a switchover waits until the target is level core.master.switchover.Switchover.is_level
    R29   acks count in their epoch                    core.master.session.MasterSession.is_of_epoch
    R38   a HELLO of a newer epoch is refused          core.peer_checks.is_newer_epoch
    R38   a HELLO of an older epoch is refused         core.peer_checks.is_older_epoch
    R38   a HELLO is of the registered incarnation     core.peer_checks.is_registered
    R40   HELLO_OK is of our epoch, leader, session    core.peer_checks.is_for_us
    R40   both sides compute the same point            core.peer_checks.is_same_point
    R40   nothing below the confirm offset is cut      core.peer_checks.keeps_confirmed
    R40   the entries below the point are equal        core.peer_checks.is_same_chain
    R42   APPEND is of the promised epoch              core.peer_checks.is_of_epoch
    R42   APPEND follows the same epoch                core.peer_checks.continues_epoch
    R29   an ack waits for the shown revision          core.following.Following.may_ack
    R13   another master's state ends the leadership   core.replica.ReplicaCore.is_our_leadership
    R14   an older state is refused                    core.promises.Promises.is_older
    R13   nothing is done before its promise is saved  core.promises.Promises.has_promised
    R15   an epoch is never led twice                  core.replica.ReplicaCore.may_begin_leading
    R34   only who holds everything stands             core.replica.ReplicaCore.may_stand
    R21   unclean and other stores leave both sets     register.rules.loses_membership
    R21   a copied or wiped directory is another store register.rules.is_other_store
    R22   only members of the sets are elected         register.rules.is_eligible
    R22   an election is of the present session        register.rules.has_current_session
    R24   a proposal means the present incarnation     register.rules.has_registered_session
    R24   a proposal is of this leadership             register.rules.is_leader
    R18   the register knows what callers saw          register.register.Register._knows
    R19   no change before more than half reported     register.register.Register.is_open
    R19   a report counts from who can know            register.register.can_know
    R18   only members raise the alarm                 register.register.may_alarm
    R22   a late copy of an election is refused        register.rules.is_next_epoch
    R22   a failover is of the epoch it was planned in register.rules.is_planned_epoch
    R56   an end is of who has promised the vacancy    register.rules.has_promised_vacancy
    R56   every replica has reported its end           register.vacancy.missing_ends
    R56   no former member lost its disk               register.vacancy.lost_stores
    R58   nodes of another branch leave both sets      register.recovery.is_on_branch
    R58   a state that no node has empties the sets    register.recovery.is_ahead
    R57   a member never deletes its log               core.peer_checks.may_begin_again
    R68   no master is deposed during a pause          register.holds.is_paused
    R68   a node in maintenance is not elected         register.holds.is_in_maintenance
    R70   a learner joins no set                       core.master.in_sync.InSyncSet.is_learner
    R70   only a full member is added to the set       register.rules.may_be_in_sync
    R74   a node that is too old is not registered     register.rules.is_new_enough
    R74   the level rises once every node knows it     register.membership.knows_level

The numbers are those of docs/protocol.md, which has every rule and says what checks it.
Sources: PacificA; Kafka's KIP-101, KIP-279 and KIP-966 (eligible leader replicas); RocketMQ's
AutoSwitchHAService and controller.
"""
