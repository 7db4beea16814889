//! Transactional messages against a real broker, real databases, and processes that are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod local;
mod producing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use local::Local;
use oncemq_core::{Consumer, Decision, Error, ErrorKind, Message};
use oncemq_rocketmq::{RocketmqBroker, TransactionError, TransactionId, TransactionalPublisher};
use oncemq_test_kit::{Instance, Log, Running, Server, is_long, logging, secs, test, unique, until};
use producing::{Job, Place, was_child};
use tokio::time::sleep;

/// The broker asks after 3 seconds, every 3 seconds, 5 times. So long nothing has happened to a
/// message that is going to be asked about.
const ASKED: Duration = Duration::from_secs(20);
/// So long after the last answer nothing happens any more.
const SETTLED: Duration = Duration::from_secs(5);

const ROCKETMQ: Server = Server("rocketmq");
const POSTGRES: Server = Server("postgres");

fn main() {
    if was_child() {
        return;
    }
    ROCKETMQ.main_alone("transactions", true, |broker| {
        let runs = is_long() && !ROCKETMQ.is_left_out() && !POSTGRES.is_left_out();
        let listed = std::env::args().any(|argument| argument == "--list");
        let postgres = if runs && !listed {
            Instance::start(POSTGRES, "transactions")
        } else {
            Instance::none(POSTGRES)
        };
        let (broker, postgres) = (Servers { broker, postgres: Arc::new(postgres) }, POSTGRES.is_left_out());
        let mut tests = vec![];
        for database in [Kind::Postgres, Kind::Sqlite] {
            let mut add = |name: &str, run: fn(Scene) -> Run| {
                let servers = broker.clone();
                let trial = test(&format!("{name}_on_{database:?}").to_lowercase(), move || async move {
                    run(Scene::new(servers, database).await).await;
                });
                tests.push(trial.with_ignored_flag(postgres && database == Kind::Postgres));
            };
            add("a_message_appears_with_its_transaction", |scene| Box::pin(fates(scene)));
            add("a_process_killed_before_its_commit_shows_nothing", |scene| Box::pin(killed_before(scene)));
            add("a_process_killed_after_its_commit_shows_it_once", |scene| Box::pin(killed_after(scene)));
            add("a_question_while_it_runs_is_decided", |scene| Box::pin(asked_while_running(scene)));
            add("a_check_that_fails_is_asked_again", |scene| Box::pin(check_fails(scene)));
        }
        let (servers, restarted) = (broker.clone(), broker);
        tests.push(
            test("a_database_that_is_down_is_asked_again", || database_down(servers))
                .with_ignored_flag(postgres),
        );
        let unanswered = restarted.clone();
        tests.push(test("a_broker_killed_meanwhile_asks_later", || broker_killed(restarted)));
        tests.push(test("what_nobody_answers_for_is_put_aside", || put_aside(unanswered)));
        tests
    });
}

type Run = std::pin::Pin<Box<dyn Future<Output = ()>>>;

#[derive(Clone)]
struct Servers {
    broker: Arc<Instance>,
    postgres: Arc<Instance>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    Sqlite,
}

/// What the questions were answered with; nothing where the check failed.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Option<Decision>>>>);

impl Answers {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn of(&self, decision: Option<Decision>) -> usize {
        self.0.lock().unwrap().iter().filter(|answer| **answer == decision).count()
    }
}

/// A topic that is consumed, a group of producers, and a database.
struct Scene {
    servers: Servers,
    job: Job,
    local: Local,
    seen: Log,
    running: Option<Running>,
    answers: Answers,
    _dir: tempfile::TempDir,
}

impl Scene {
    async fn new(servers: Servers, kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = match kind {
            Kind::Postgres => servers.postgres.url(),
            Kind::Sqlite => dir.path().join("local.db").to_str().unwrap().to_owned(),
        };
        let job =
            Job { url: servers.broker.url(), database, group: unique("producers"), topic: unique("orders") };
        let seen = Log::default();
        let broker = RocketmqBroker::from_url(&job.url).unwrap().queues(2);
        let handler = logging(&seen, |_, _| async { Ok(()) });
        let consumer = Consumer::new(unique("reader"), broker).topic(job.topic.as_str()).unguarded(handler);
        let running = Some(Running::start(consumer).await);
        let local = Local::open(&job.database, &job.group).await;
        Self { servers, job, local, seen, running, answers: Answers::default(), _dir: dir }
    }

    /// A publisher whose questions are answered from the database.
    async fn publisher(&self) -> TransactionalPublisher {
        let (local, answers) = (self.local.clone(), self.answers.clone());
        let check = move |id: TransactionId| {
            let (local, answers) = (local.clone(), answers.clone());
            async move {
                let decision = local.decide(id.as_str()).await;
                answers.0.lock().unwrap().push(decision.as_ref().ok().copied());
                decision
            }
        };
        // A broker that was killed may take half a minute to be there again.
        let broker = RocketmqBroker::from_url(&self.job.url).unwrap().publish_timeout(secs(90));
        broker.transactions(&self.job.group, &[&self.job.topic], check).await.unwrap()
    }

    fn seen(&self, body: &str) -> usize {
        self.seen.runs(body).len()
    }

    async fn until_seen(&self, body: &str, limit: Duration) {
        until(&format!("{body} is seen"), limit, async || self.seen(body) > 0).await;
    }

    /// Effect and message, at the end.
    async fn assert_once(&self, body: &str, there: bool) {
        assert_eq!(self.seen(body), usize::from(there), "messages of {body}");
        assert_eq!(self.local.effects(body).await, i64::from(there), "effects of {body}");
    }

    async fn end(mut self, publisher: TransactionalPublisher) {
        publisher.close().await.unwrap();
        self.running.take().unwrap().stop().await;
    }
}

fn failed(text: &str) -> Error {
    Error::new(ErrorKind::Store, text.to_owned())
}

async fn fates(scene: Scene) {
    let publisher = scene.publisher().await;
    let (topic, local) = (scene.job.topic.as_str(), &scene.local);
    for n in 0..10 {
        let (kept, dropped) = (format!("kept-{n}"), format!("dropped-{n}"));
        let message = Message::new(kept.clone()).with_key("order").with_header("tenant", "t");
        let value = publisher
            .publish(topic, &message, async |id: TransactionId| {
                local.commit(local.begin(&kept).await, id.as_str()).await.map(|()| n)
            })
            .await;
        assert_eq!(value.unwrap(), n);
        let message = Message::new(dropped.clone());
        let error = publisher
            .publish(topic, &message, async |_| {
                local.begin(&dropped).await.rollback().await;
                Err::<(), _>(failed("no"))
            })
            .await
            .unwrap_err();
        assert!(matches!(error, TransactionError::Local { decision: Decision::RolledBack, .. }), "{error:?}");
    }
    // The answer to the commit is lost; the note says what it was.
    let error = publisher
        .publish(topic, &Message::new("unknown"), async |id: TransactionId| {
            local.commit(local.begin("unknown").await, id.as_str()).await.unwrap();
            Err::<(), _>(failed("lost"))
        })
        .await
        .unwrap_err();
    assert!(matches!(error, TransactionError::Local { decision: Decision::Committed, .. }), "{error:?}");
    // Without the note nothing would be known after a crash, so it does not count.
    let error = publisher
        .publish(topic, &Message::new("unnoted"), async |_| {
            local.begin("unnoted").await.plainly().await;
            Ok::<_, Error>(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, TransactionError::NotCommitted), "{error:?}");

    let all = async || (0..10).all(|n| scene.seen(&format!("kept-{n}")) > 0) && scene.seen("unknown") > 0;
    until("all are seen", secs(3), all).await;
    let asked_by_us = scene.answers.count();
    sleep(secs(12)).await;
    // The broker had nothing to ask.
    assert_eq!(scene.answers.count(), asked_by_us);
    for n in 0..10 {
        scene.assert_once(&format!("kept-{n}"), true).await;
        scene.assert_once(&format!("dropped-{n}"), false).await;
    }
    scene.assert_once("unknown", true).await;
    assert_eq!(scene.seen("unnoted"), 0);
    scene.end(publisher).await;
}

async fn killed_before(scene: Scene) {
    scene.job.kill_at(Place::Half, "half");
    scene.job.kill_at(Place::Open, "open");
    // Only now is there somebody to ask.
    let publisher = scene.publisher().await;
    until("both are decided", ASKED, async || scene.answers.of(Some(Decision::RolledBack)) >= 2).await;
    sleep(SETTLED).await;
    scene.assert_once("half", false).await;
    scene.assert_once("open", false).await;
    assert_eq!(scene.answers.of(Some(Decision::Committed)), 0);
    scene.end(publisher).await;
}

async fn killed_after(scene: Scene) {
    let bodies = ["committed", "decided"];
    scene.job.kill_at(Place::Committed, "committed");
    scene.job.kill_at(Place::Decided, "decided");
    sleep(secs(1)).await;
    assert_eq!(bodies.map(|body| scene.seen(body)), [0, 0], "nobody has told the broker");
    let publisher = scene.publisher().await;
    for body in bodies {
        scene.until_seen(body, ASKED).await;
    }
    sleep(SETTLED).await;
    for body in bodies {
        scene.assert_once(body, true).await;
    }
    scene.end(publisher).await;
}

/// One is asked about before it has written its decision and can commit no more; the other one
/// after, and commits.
async fn asked_while_running(scene: Scene) {
    let publisher = scene.publisher().await;
    let (topic, local) = (scene.job.topic.as_str(), &scene.local);
    let late = publisher
        .publish(topic, &Message::new("late"), async |id: TransactionId| {
            until("the broker asks", ASKED, async || scene.answers.of(Some(Decision::RolledBack)) > 0).await;
            local.commit(local.begin("late").await, id.as_str()).await
        })
        .await
        .unwrap_err();
    assert!(matches!(late, TransactionError::Local { decision: Decision::RolledBack, .. }), "{late:?}");

    let message = Message::new("early");
    let early = publisher.publish(topic, &message, async |id: TransactionId| {
        let mut open = local.begin("early").await;
        local.record(&mut open, id.as_str()).await;
        until("the broker asks", ASKED, async || scene.answers.of(Some(Decision::Open)) > 0).await;
        open.plainly().await;
        Ok::<_, Error>(())
    });
    early.await.unwrap();
    scene.until_seen("early", ASKED).await;
    sleep(SETTLED).await;
    scene.assert_once("late", false).await;
    scene.assert_once("early", true).await;
    scene.end(publisher).await;
}

/// The process that knows is not the one that is asked at first.
async fn check_fails(scene: Scene) {
    let process = scene.job.start_to(Place::Committed, "committed");
    sleep(secs(7)).await;
    assert_eq!(scene.seen("committed"), 0, "a check that fails decides nothing");
    process.kill();
    let publisher = scene.publisher().await;
    scene.until_seen("committed", ASKED).await;
    sleep(SETTLED).await;
    scene.assert_once("committed", true).await;
    scene.end(publisher).await;
}

async fn database_down(servers: Servers) {
    let scene = Scene::new(servers, Kind::Postgres).await;
    scene.job.kill_at(Place::Committed, "committed");
    scene.job.kill_at(Place::Half, "half");
    scene.servers.postgres.kill();
    let publisher = scene.publisher().await;
    until("both are asked about in vain", ASKED, async || scene.answers.of(None) >= 2).await;
    assert_eq!(scene.seen("committed"), 0, "a database that is down decides nothing");
    scene.servers.postgres.again();
    scene.until_seen("committed", ASKED).await;
    until("the other one is decided", ASKED, async || scene.answers.of(Some(Decision::RolledBack)) > 0).await;
    sleep(SETTLED).await;
    scene.assert_once("committed", true).await;
    scene.assert_once("half", false).await;
    scene.end(publisher).await;
}

async fn broker_killed(servers: Servers) {
    let scene = Scene::new(servers, Kind::Sqlite).await;
    let publisher = scene.publisher().await;
    scene.job.kill_at(Place::Committed, "committed");
    scene.job.kill_at(Place::Half, "half");
    scene.servers.broker.kill();
    let message = Message::new("meanwhile");
    let sent = {
        let (publisher, local, topic) = (publisher.clone(), scene.local.clone(), scene.job.topic.clone());
        tokio::spawn(async move {
            let run = |id: TransactionId| async move {
                local.commit(local.begin("meanwhile").await, id.as_str()).await
            };
            publisher.publish(&topic, &message, run).await
        })
    };
    sleep(secs(1)).await;
    scene.servers.broker.again();
    sent.await.unwrap().unwrap();
    for body in ["meanwhile", "committed"] {
        scene.until_seen(body, secs(40)).await;
    }
    until("the other one is decided", ASKED, async || scene.answers.of(Some(Decision::RolledBack)) > 0).await;
    sleep(SETTLED).await;
    // A consumer whose broker was killed may see a message again.
    assert!(scene.seen("committed") >= 1 && scene.seen("meanwhile") >= 1 && scene.seen("half") == 0);
    scene.end(publisher).await;
}

/// The limit that the documentation names: the broker counts its questions, whether somebody is
/// there or not.
async fn put_aside(servers: Servers) {
    let scene = Scene::new(servers, Kind::Sqlite).await;
    scene.job.kill_at(Place::Committed, "aside");
    sleep(secs(40)).await;
    let publisher = scene.publisher().await;
    sleep(secs(10)).await;
    assert_eq!((scene.seen("aside"), scene.answers.count()), (0, 0));
    let tool = |arguments: &[&str]| scene.servers.broker.tool("ONCEMQ_ROCKETMQ_ADMIN", arguments);
    let kept = tool(&["printMsg", "-t", "TRANS_CHECK_MAX_TIME_TOPIC"]);
    assert!(kept.contains("aside"), "{kept}");
    scene.end(publisher).await;
}
