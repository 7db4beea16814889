//! Who may run a key, and who learns that it is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

use super::{
    LIMIT, Outcome, StoreHarness, apply, apply_committed, case, context, ensure, entry, entry_of, open,
};
use crate::{Claim, Ending, Entry, Message, Record, Unit};

pub(super) fn cases<H: StoreHarness>(harness: &Arc<H>, trials: &mut Vec<Trial>) {
    case(harness, trials, "claim_new_commits_record_and_effect_together", new_then_done);
    case(harness, trials, "claim_rolled_back_is_free_again", rolled_back_is_free);
    case(harness, trials, "claim_of_a_dropped_unit_is_free_again", dropped_is_free);
    case(harness, trials, "claim_of_a_running_twin_is_busy_without_waiting", twin_is_busy);
    case(harness, trials, "claim_of_many_keys_judges_each", many_keys);
    case(harness, trials, "claim_races_have_one_winner", one_winner);
    case(harness, trials, "kd2_done_key_tells_other_body_and_conflict_fields", done_tells_differences);
}

const DONE: Claim = Claim::Done { same_body: true, conflict: false };

/// What a claim says, without keeping it.
async fn look<R: Record>(record: &R, entry: &Entry) -> Result<Claim, Failed> {
    let (unit, verdict) = open(record, entry).await?;
    unit.rollback().await;
    Ok(verdict.claim)
}

async fn new_then_done<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    apply_committed(&*h, &record, &entry(b"k"), "e").await?;
    ensure(h.effect(&record, "e").await? == 1, || "the effect is not there".into())?;
    let claim = look(&record, &entry(b"k")).await?;
    ensure(claim == DONE, || format!("a done key is {claim:?}"))?;
    ensure(h.effect(&record, "e").await? == 1, || "the effect changed".into())
}

async fn rolled_back_is_free<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let (mut unit, _) = open(&record, &entry(b"k")).await?;
    let mut loan = unit.lend(context(&entry(b"k")));
    h.add(&mut loan, "e").await?;
    drop(loan);
    let ending = unit.rollback().await;
    ensure(matches!(ending, Ending::RolledBack), || format!("the rollback ended as {ending:?}"))?;
    ensure(h.effect(&record, "e").await? == 0, || "a rolled back effect is there".into())?;
    apply_committed(&*h, &record, &entry(b"k"), "e").await?;
    ensure(h.effect(&record, "e").await? == 1, || "the effect is not there once".into())
}

async fn dropped_is_free<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let (mut unit, _) = open(&record, &entry(b"k")).await?;
    let mut loan = unit.lend(context(&entry(b"k")));
    h.add(&mut loan, "e").await?;
    drop(loan);
    drop(unit);
    // The server may need a moment to notice.
    let until = Instant::now() + LIMIT;
    loop {
        let claim = look(&record, &entry(b"k")).await?;
        if claim == Claim::New {
            break;
        }
        ensure(Instant::now() < until, || format!("still {claim:?} long after the drop"))?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure(h.effect(&record, "e").await? == 0, || "a dropped effect is there".into())
}

async fn twin_is_busy<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    if record.facts().units < 2 {
        return waits_in_turn(&record).await;
    }
    let (first, _) = open(&record, &entry(b"k")).await?;
    let started = Instant::now();
    let claim = look(&record, &entry(b"k")).await?;
    ensure(claim == Claim::Busy, || format!("a running twin is {claim:?}"))?;
    ensure(started.elapsed() < Duration::from_secs(1), || "the claim waited for its twin".into())?;
    let claim = look(&record, &entry(b"other")).await?;
    ensure(claim == Claim::New, || format!("another key is {claim:?}"))?;
    first.rollback().await;
    Ok(())
}

/// With one unit at a time no twin can run: the second unit opens when the first has ended.
async fn waits_in_turn<R: Record>(record: &R) -> Outcome {
    let (first, _) = open(record, &entry(b"k")).await?;
    let second = tokio::time::timeout(Duration::from_millis(300), record.begin(LIMIT)).await;
    ensure(second.is_err(), || "two units are open, though the store promises one".into())?;
    first.rollback().await;
    let claim = look(record, &entry(b"k")).await?;
    ensure(claim == Claim::New, || format!("after the rollback it is {claim:?}"))
}

async fn many_keys<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    apply_committed(&*h, &record, &entry(b"b"), "e").await?;
    let mut unit = record.begin(LIMIT).await?;
    let verdicts = unit.claim(&[entry(b"c"), entry(b"b"), entry(b"a")]).await?;
    let claims: Vec<_> = verdicts.iter().map(|verdict| verdict.claim).collect();
    ensure(claims == [Claim::New, DONE, Claim::New], || format!("not in the entries' order: {claims:?}"))?;
    let ending = unit.commit().await;
    ensure(matches!(ending, Ending::Committed), || format!("{ending:?}"))?;
    for key in [b"a", b"c"] {
        let claim = look(&record, &entry(key)).await?;
        ensure(claim == DONE, || format!("{key:?} is {claim:?}"))?;
    }
    Ok(())
}

async fn one_winner<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = Arc::new(h.open().await?);
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (h, record) = (h.clone(), record.clone());
        racers.spawn(async move { race(&*h, &*record).await });
    }
    let mut winners = 0;
    while let Some(won) = racers.join_next().await {
        winners += won??;
    }
    ensure(winners == 1, || format!("{winners} of 50 racers ran the key"))?;
    ensure(h.effect(&record, "race").await? == 1, || "the effect is not there once".into())
}

/// Claims until the key is won or done; 1 for the winner.
async fn race<H: StoreHarness>(h: &H, record: &H::Record) -> Result<u32, Failed> {
    let entry = entry(b"race");
    loop {
        match look_and_apply(h, record, &entry).await? {
            (Claim::New, Some(Ending::Committed)) => return Ok(1),
            (Claim::Done { .. }, _) => return Ok(0),
            (Claim::Busy, _) | (Claim::New, Some(Ending::Redo(_))) => {}
            (_, ending) => return Err(format!("the winner's commit ended as {ending:?}").into()),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn look_and_apply<H: StoreHarness>(
    h: &H,
    record: &H::Record,
    entry: &Entry,
) -> Result<(Claim, Option<Ending>), Failed> {
    let (mut unit, verdict) = open(record, entry).await?;
    if verdict.claim != Claim::New {
        unit.rollback().await;
        return Ok((verdict.claim, None));
    }
    let mut loan = unit.lend(context(entry));
    h.add(&mut loan, "race").await?;
    drop(loan);
    Ok((Claim::New, Some(unit.commit().await)))
}

async fn done_tells_differences<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let make = |body: &'static str, conflict: u8| {
        let mut entry = entry_of("consumer", "kind", b"k", &Message::new(body));
        entry.conflict = (conflict > 0).then_some([conflict; 32]);
        entry
    };
    let ending = apply(&*h, &record, &make("A", 1), "e").await?;
    ensure(matches!(ending, Ending::Committed), || format!("{ending:?}"))?;
    let again = [
        (make("A", 1), true, false),
        (make("B", 1), false, false),
        (make("B", 2), false, true),
        (make("A", 0), true, false),
    ];
    for (entry, same_body, conflict) in again {
        let claim = look(&record, &entry).await?;
        let expected = Claim::Done { same_body, conflict };
        ensure(claim == expected, || format!("{claim:?} instead of {expected:?}"))?;
    }
    Ok(())
}
