//! The suite for stores: what every [`Record`] must keep, the simulated one included.
//!
//! A store's author writes a [`StoreHarness`] and a test binary without the usual harness
//! whose `main` is `store::main(harness)`.

mod claims;
mod keys;
mod notes;
mod units;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{Context, Entry, Error, KeyValue, Message, Parts, Record, Trail, Unit, Verdict};

/// What the suite needs to know about a store.
pub trait StoreHarness: Send + Sync + 'static {
    /// The store.
    type Record: Record;

    /// Why the suite cannot run here: a server that was left out by name. The cases are
    /// then listed as ignored.
    fn left_out(&self) -> Option<String> {
        None
    }

    /// An empty store that no other case sees.
    fn open(&self) -> impl Future<Output = Result<Self::Record, Error>> + Send;

    /// Adds one to the effect of this name through a loan.
    fn add(
        &self,
        loan: &mut <Self::Record as Record>::Loan,
        name: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The committed effect of this name.
    fn effect(&self, record: &Self::Record, name: &str) -> impl Future<Output = Result<i64, Error>> + Send;
}

/// What a case returns: nothing, or what was wrong.
pub(crate) type Outcome = Result<(), Failed>;

/// Runs the suite as a test binary: names, filters and closing line as of any other.
pub fn main<H: StoreHarness>(harness: H) -> ExitCode {
    let arguments = Arguments::from_args();
    let harness = Arc::new(harness);
    let left_out = harness.left_out();
    let mut trials = Vec::new();
    claims::cases(&harness, &mut trials);
    keys::cases(&harness, &mut trials);
    notes::cases(&harness, &mut trials);
    units::cases(&harness, &mut trials);
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(left_out.is_some())).collect();
    if let Some(why) = left_out {
        note(&format!("store suite ignored: {why}"));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[allow(clippy::print_stderr, reason = "a test binary tells its reader why it ignores")]
fn note(text: &str) {
    eprintln!("{text}");
}

/// Adds a case: an async function of the harness, with a runtime of its own.
fn case<H, F, Fut>(harness: &Arc<H>, trials: &mut Vec<Trial>, name: &str, run: F)
where
    H: StoreHarness,
    F: FnOnce(Arc<H>) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    let harness = harness.clone();
    trials.push(Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let limited = async { tokio::time::timeout(Duration::from_secs(60), run(harness)).await };
        runtime.block_on(limited).map_err(|_| Failed::from("not done after 60 s"))?
    }));
}

const LIMIT: Duration = Duration::from_secs(10);

/// An entry for a key of a message of its own.
fn entry(key: &[u8]) -> Entry {
    entry_of("consumer", "kind", key, &Message::new(key.to_vec()))
}

fn entry_of(consumer: &str, kind: &str, key: &[u8], message: &Message) -> Entry {
    let trail = Trail::read(message, &consumer.into(), &kind.into(), crate::Identity::Content);
    let mut body = [0; 32];
    for (slot, byte) in body.iter_mut().zip(message.body()) {
        *slot = *byte;
    }
    Entry::new(Some(KeyValue::business(key)), trail, body)
}

/// Opens a unit and claims one key in it.
async fn open<R: Record>(record: &R, entry: &Entry) -> Result<(R::Unit, Verdict), Error> {
    let mut unit = record.begin(LIMIT).await?;
    let verdict = unit
        .claim(std::slice::from_ref(entry))
        .await?
        .pop()
        .ok_or_else(|| Error::new(crate::ErrorKind::Internal, "no verdict for a claim"))?;
    Ok((unit, verdict))
}

/// Claims, adds to an effect through the loan, and commits.
async fn apply<H: StoreHarness>(
    harness: &H,
    record: &H::Record,
    entry: &Entry,
    name: &str,
) -> Result<crate::Ending, Failed> {
    let (mut unit, verdict) = open(record, entry).await?;
    ensure(verdict.claim == crate::Claim::New, || format!("the claim is {:?}", verdict.claim))?;
    let mut loan = unit.lend(context(entry));
    harness.add(&mut loan, name).await?;
    drop(loan);
    Ok(unit.commit().await)
}

/// As [`apply`], and it must commit.
async fn apply_committed<H: StoreHarness>(
    harness: &H,
    record: &H::Record,
    entry: &Entry,
    name: &str,
) -> Outcome {
    let ending = apply(harness, record, entry, name).await?;
    ensure(matches!(ending, crate::Ending::Committed), || format!("the commit ended as {ending:?}"))
}

fn context(entry: &Entry) -> Context {
    Context::new(Message::from(Parts::default()), entry.key.clone(), 1)
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failed::from(otherwise())) }
}
