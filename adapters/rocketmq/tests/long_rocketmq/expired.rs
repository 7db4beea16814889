//! Messages that a broker deletes while they are handled, and before they are read.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use oncemq_core::{Consumer, Context, Failure, Message};
use oncemq_test_kit::{Log, Running, logging, millis, secs, unique, until};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::Server;
use crate::common::ladder;

pub(crate) async fn run(server: Server) {
    let (group, topic, expired) = (unique("points"), unique("expired"), Arc::new(Notify::new()));
    let consumer = |log: &Log| {
        let expired = expired.clone();
        Consumer::new(group.as_str(), server.broker("").queues(1))
            .topic(topic.as_str())
            .timeout(secs(120))
            .retry(ladder("1s dead-letter"))
            .unguarded(logging(log, move |cx: Context, message: Message| {
                let expired = expired.clone();
                async move {
                    if message.body() != b"0" || cx.attempt() > 1 {
                        return Ok(());
                    }
                    expired.notified().await;
                    Err(Failure::system("busy"))
                }
            }))
    };
    let log = Log::default();
    let running = Running::start(consumer(&log)).await;
    server.publish(&topic, [Message::new("0").with_id("id-0"), Message::new("9")]).await;
    until("it runs", secs(20), async || log.len() == 2).await;
    expire(&server).await;
    expired.notify_one();
    until("it has run again", secs(20), async || log.len() == 3).await;
    let summary = running.stop().await;
    let attempts: Vec<u32> = log.runs("0").into_iter().map(|(attempt, _)| attempt).collect();
    assert_eq!((attempts, summary.retried, summary.handled, summary.gaps), (vec![1, 2], 1, 2, 0));

    let lost = ["1", "2", "3"].map(Message::new);
    server.publish(&topic, lost).await;
    expire(&server).await;
    let log = Log::default();
    let running = Running::start(consumer(&log)).await;
    server.publish(&topic, [Message::new("4")]).await;
    until("what came later is handled", secs(20), async || log.bodies().contains(&"4".to_owned())).await;
    let summary = running.stop().await;
    assert_eq!((summary.gaps, log.bodies().contains(&"1".to_owned())), (1, false), "{summary:?}");
}

/// Has the broker delete what it has: it deletes whole files of its log, but for the one it
/// writes, and makes the next one early.
async fn expire(server: &Server) {
    let log = Path::new(&server.0.get("ONCEMQ_ROCKETMQ_ADMIN")).with_file_name("data/store-a/commitlog");
    let files = || -> BTreeSet<OsString> {
        std::fs::read_dir(&log).unwrap().map(|file| file.unwrap().file_name()).collect()
    };
    let before = files();
    let filler = unique("filler");
    server.admin(&format!("updateTopic -c oncemq -t {filler} -r 1 -w 1")).await;
    while files().difference(&before).count() < 2 {
        server.publish(&filler, (0..4).map(|_| Message::new(vec![0; 4_000_000]))).await;
    }
    let broker = server.0.get("ONCEMQ_ROCKETMQ_BROKER_URL").replace("tcp://", "");
    server.admin(&format!("updateBrokerConfig -b {broker} -k fileReservedTime -v 0")).await;
    server.admin("deleteExpiredCommitLog -c oncemq").await;
    until("the broker has deleted it", secs(60), async || files().is_disjoint(&before)).await;
    server.admin(&format!("updateBrokerConfig -b {broker} -k fileReservedTime -v 72")).await;
    // It tells where queues begin a little later.
    sleep(millis(500)).await;
}
