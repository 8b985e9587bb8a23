"""Names of the topics that users do not write to.

Records of these topics are in the log like any other; clients and reports leave them out unless
asked.

Sources: RocketMQ's ``TopicValidator``.
"""

from __future__ import annotations

SYSTEM_TOPIC_PREFIX = "rmq_sys_TWINLOG_"
SYSTEM_TOPIC_EPOCH = "rmq_sys_TWINLOG_EPOCH"
"""Queue 0 holds the record that opens each epoch and each log file."""
SYSTEM_TOPIC_META = "rmq_sys_TWINLOG_META"
"""Queue 0 holds control records: topics, groups, producers."""
SYSTEM_TOPIC_GROUP = "rmq_sys_TWINLOG_GROUP"
"""Queue 0 holds what groups have consumed (`twinlog.format.group_rows`)."""

RETRY_PREFIX = "%RETRY%"
"""Before a group: RocketMQ's topic of what the group is to try again."""
DEAD_PREFIX = "%DLQ%"
"""Before a group: the topic of what the group has given up, RocketMQ's name for it."""
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's topic of delayed records; their tags codes are delivery times."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""RocketMQ's topic of records that wait for a time; its only queue is 0."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""RocketMQ's topic of messages whose transaction is not settled yet; its only queue is 0."""
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""RocketMQ's topic that says which of them are settled; its only queue is 0."""
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""RocketMQ's topic of messages whose transaction was given up; its only queue is 0."""
