//! What the tests of every database share: entries, and a driver as small as it can be.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod postgres;

use std::future::Future;
use std::time::Duration;

use oncemq_core::{
    Claim, Context, Ending, Entry, ErrorKind, Failure, Identity, KeyValue, Message, Record, Trail, Unit,
    Verdict,
};
use oncemq_idempotency::{Dialect, Inbox, Tx};

pub const LIMIT: Duration = Duration::from_secs(10);

/// An entry of a message with this key and body.
pub fn entry_of(key: &[u8], body: &str) -> Entry {
    let message = Message::new(body.to_owned()).with_key(key.to_owned());
    entry_for(&message, key)
}

pub fn entry_for(message: &Message, key: &[u8]) -> Entry {
    let trail = Trail::read(message, &"points".into(), &"order-completed".into(), Identity::Content);
    let mut body = [0; 32];
    let bytes = message.body();
    body[..bytes.len().min(32)].copy_from_slice(&bytes[..bytes.len().min(32)]);
    let mut entry = Entry::new(Some(KeyValue::business(key)), trail, body);
    entry.message_id = message.id().map(str::to_owned);
    entry
}

pub fn entry(key: impl AsRef<[u8]>) -> Entry {
    entry_of(key.as_ref(), &format!("body of {:?}", key.as_ref()))
}

pub fn context(entry: &Entry) -> Context {
    Context::new(Message::new("{}"), entry.key.clone(), entry.trail.attempt + 1)
}

/// Opens a unit and claims one key in it.
pub async fn claimed<DB: Dialect>(
    inbox: &Inbox<DB>,
    entry: &Entry,
) -> (<Inbox<DB> as Record>::Unit, Verdict) {
    let mut unit = inbox.begin(LIMIT).await.unwrap();
    let mut verdicts = unit.claim(std::slice::from_ref(entry)).await.unwrap();
    assert_eq!(verdicts.len(), 1);
    (unit, verdicts.pop().unwrap())
}

/// The same, as patient as a consumer is with a store that does not answer.
async fn claimed_when_up<DB: Dialect>(
    inbox: &Inbox<DB>,
    entry: &Entry,
) -> (<Inbox<DB> as Record>::Unit, Verdict) {
    for _ in 0..10 {
        match inbox.begin(LIMIT).await {
            Ok(mut unit) => {
                let mut verdicts = unit.claim(std::slice::from_ref(entry)).await.unwrap();
                return (unit, verdicts.pop().unwrap());
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Store, "{error}"),
        }
    }
    panic!("the store did not come back")
}

/// One run: claim, handler, end.
pub async fn once<DB, H, Fut>(inbox: &Inbox<DB>, entry: &Entry, handler: H) -> Ending
where
    DB: Dialect,
    H: FnOnce(Tx<DB>) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let (mut unit, verdict) = claimed(inbox, entry).await;
    assert_eq!(verdict.claim, Claim::New, "the key was not new");
    let loan = unit.lend(context(entry));
    match handler(loan).await {
        Ok(()) => unit.commit().await,
        Err(_) => unit.rollback().await,
    }
}

/// What became of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Duplicate,
}

/// Delivers until the key is done, as a consumer would, however long a twin takes.
pub async fn deliver<DB, H, Fut>(inbox: &Inbox<DB>, entry: &Entry, handler: H) -> Outcome
where
    DB: Dialect,
    H: Fn(Tx<DB>) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let mut redos = 0;
    for _ in 0..2000 {
        let (mut unit, verdict) = claimed_when_up(inbox, entry).await;
        match verdict.claim {
            Claim::Done { .. } => {
                let ending = unit.rollback().await;
                assert!(matches!(ending, Ending::RolledBack), "{ending:?}");
                return Outcome::Duplicate;
            }
            Claim::Busy => {
                let _ = unit.rollback().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            Claim::New => {}
        }
        let loan = unit.lend(context(entry));
        let said = handler(loan).await;
        let ending = match &said {
            Ok(()) => unit.commit().await,
            Err(_) => unit.rollback().await,
        };
        match (ending, said) {
            (Ending::Committed, Ok(())) => return Outcome::Done,
            (Ending::Redo(_) | Ending::Unknown(_), _) => {
                // As the runtime does it: longer each time, and not in step with others.
                redos += 1;
                let jitter = u64::from(entry.trail.id.as_bytes()[0]) * redos.min(20) / 16;
                tokio::time::sleep(Duration::from_millis(10 * redos.min(20) + jitter)).await;
            }
            (ending, said) => panic!("{ending:?} after {said:?}"),
        }
    }
    panic!("{entry:?} was never done")
}

pub fn is_done(verdict: &Verdict) -> bool {
    matches!(verdict.claim, Claim::Done { .. })
}
