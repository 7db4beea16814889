//! Names of properties.

/// The id of a message; the producer makes it, and it stays through retries and dead letters.
pub(super) const UNIQ_KEY: &str = "UNIQ_KEY";
/// The message group: messages of one group are in one queue.
pub(super) const GROUP: &str = "__SHARDINGKEY";
/// The topic that a message had before it was sent back.
pub(super) const RETRY_TOPIC: &str = "RETRY_TOPIC";
/// Where it was stored first.
pub(super) const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
pub(super) const CONTENT_TYPE: &str = "oncemq-content-type";
/// Where other clients write it.
pub(super) const FOREIGN_CONTENT_TYPE: &str = "content-type";
/// The broker stores no empty body: such a message has one zero byte, and this property.
pub(super) const EMPTY: &str = "oncemq-empty-body";
/// How many of the broker's count are in our own header already.
pub(super) const COUNTED: &str = "oncemq-counted";

/// The transaction of a half message.
pub(super) const TRANSACTION: &str = "oncemq-transaction";

/// Ways to ask for a delay, as headers of a message that is published.
pub(super) const DELAYS: [&str; 4] = ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

/// Properties that belong to the broker and its clients. Nobody may set them, and they are not
/// shown as headers.
pub(super) const SYSTEM: [&str; 48] = [
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "DUP_INFO",
    "E_T",
    "EXTEND_UNIQ_INFO",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INSTANCE_ID",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    ORIGIN_MESSAGE_ID,
    "ORIGIN_GROUP",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REDIRECT",
    "REPLY_TO_CLIENT",
    RETRY_TOPIC,
    "TRACE_CONTEXT",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "TRANSFER_FLAG",
    "TRANS_OFFSET",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "WAIT",
    "_SYS_MSG_PRIORITY_",
    UNIQ_KEY,
];

/// Properties of ours that no header shows.
pub(super) const OURS: [&str; 4] = [CONTENT_TYPE, EMPTY, COUNTED, TRANSACTION];

pub(super) fn is_system(name: &str) -> bool {
    let timer = name.starts_with("TIMER_") && !DELAYS.contains(&name);
    timer || name.starts_with("__") || SYSTEM.contains(&name)
}
