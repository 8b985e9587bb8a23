"""One master, many slaves, one history.

How a node gets a role: every process begins *fenced* and registers at the coordinator. The group
state (``group_state``) that comes back is first fsynced as a promise, then acted upon: whoever it
names leads, the others dial the leader, and when there is no leader those that hold everything
stand in turn. The diagram of roles is drawn from ``roles.ROLES``.

How a slave joins: it says HELLO with its epoch history; the master answers with the *consistent
point*, where both histories part, and a chain of CRCs below it; the slave computes the point
itself, compares, cuts what the master never had, and says READY. From then on whole batches flow,
and each is acknowledged once it is stored with its entry. One second later the master proposes the
slave for the in-sync set; the confirm offset waits for it from that moment.

What runs where:

* pure: ``core`` (roles, promises), ``mastership`` with ``in_sync``, ``waiters``,
  ``master_session``; ``following`` with ``slave_session``, ``consistency``; ``questions`` and
  ``calls`` (what is asked of the register); ``register`` with ``register_rules`` and
  ``register_ops`` (the register itself); ``frames``, ``pacing``, ``roles``, ``settings``;
* ``driver`` with ``replies``, ``upkeep``, ``shipment``, ``view`` binds that to a store; no clock,
  no socket;
* services: ``replica_service``, ``stream_service``, ``coordinator_service``,
  ``coordinator_client``.

The checks that the safety of the protocol leans on are small functions of their own, so that the
simulator can take each away by its name and show that something breaks:

    rule                                          function
    confirm needs min_isr recorded members        in_sync.InSyncSet.may_confirm
    confirm needs the epoch record                in_sync.InSyncSet.covers_epoch
    both sets count while a proposal is open      in_sync.InSyncSet.counted_names
    only a newer revision settles a proposal      in_sync.InSyncSet.settles
    acks count for the registered session         in_sync.InSyncSet.is_of_session
    acks count when they show the revision        in_sync.InSyncSet.shows_revision
    joining needs all that is confirmed           in_sync.InSyncSet.has_confirmed
    joining needs the epoch record                in_sync.InSyncSet.has_epoch
    an ack is worth what the quality says         mastership.Mastership.quality_of
    the own part, by the same quality             context.Context.own_end
    a switchover waits until the target is level  mastership.Mastership.is_level
    acks count in their epoch                     master_session.MasterSession.is_of_epoch
    a HELLO of a newer epoch is refused           master_session.is_newer_epoch
    a HELLO of an older epoch is refused          master_session.is_older_epoch
    a HELLO is of the registered incarnation      master_session.is_registered
    HELLO_OK is of our epoch, leader, session     slave_session.is_for_us
    both sides compute the same point             slave_session.is_same_point
    nothing below the confirm offset is cut       slave_session.keeps_confirmed
    the entries below the point are equal         slave_session.is_same_chain
    APPEND is of the promised epoch               slave_session.is_of_epoch
    APPEND follows the same epoch                 slave_session.continues_epoch
    an ack waits for the shown revision           following.FollowingMaster.may_ack
    another master's state ends the reign         core.ReplicaCore.is_our_reign
    an older state is refused                     core.ReplicaCore.is_older
    nothing is done before its promise is saved   core.ReplicaCore.has_promised
    an epoch is never led twice                   core.ReplicaCore.may_begin_reign
    only who holds everything stands              core.ReplicaCore.may_stand
    unclean and other stores leave both sets      register_rules.loses_membership
    a copied or wiped directory is another store  register_rules.is_other_store
    only members of the sets are elected          register_rules.is_eligible
    an election is of the present session         register_rules.has_current_session
    a proposal means the present incarnation      register_rules.has_registered_session
    a proposal is of this reign                   register_rules.is_leader
    the register knows what callers saw           register.Register._knows
    no change before more than half reported      register.Register.is_open

Sources: replication.md part G and appendix 1, protocol.md 5 to 10.
"""
