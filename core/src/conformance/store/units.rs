//! How units end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use super::{LIMIT, Outcome, StoreHarness, apply_committed, case, context, ensure, entry, open};
use crate::{Claim, Ending, Record, Unit};

pub(super) fn cases<H: StoreHarness>(harness: &Arc<H>, trials: &mut Vec<Trial>) {
    case(harness, trials, "unit_committed_with_its_loan_out_leaves_nothing", committed_with_loan_out);
    case(harness, trials, "unit_rolled_back_with_its_loan_out_leaves_nothing", rolled_back_with_loan_out);
    case(harness, trials, "unit_without_claims_ends_quietly", empty);
    case(harness, trials, "units_in_a_row_commit_each", many_in_a_row);
    case(harness, trials, "store_answers_the_probe", probe);
}

async fn committed_with_loan_out<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let (mut unit, _) = open(&record, &entry(b"k")).await?;
    let mut loan = unit.lend(context(&entry(b"k")));
    h.add(&mut loan, "e").await?;
    let ending = unit.commit().await;
    ensure(matches!(ending, Ending::NotReturned), || format!("a kept loan ended as {ending:?}"))?;
    drop(loan);
    becomes_free(&*h, &record).await
}

async fn rolled_back_with_loan_out<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let (mut unit, _) = open(&record, &entry(b"k")).await?;
    let mut loan = unit.lend(context(&entry(b"k")));
    h.add(&mut loan, "e").await?;
    let ending = unit.rollback().await;
    ensure(matches!(ending, Ending::NotReturned), || format!("a kept loan ended as {ending:?}"))?;
    drop(loan);
    becomes_free(&*h, &record).await
}

/// Neither record nor effect is there, and the key can be run.
async fn becomes_free<H: StoreHarness>(h: &H, record: &H::Record) -> Outcome {
    let until = Instant::now() + LIMIT;
    loop {
        let (unit, verdict) = open(record, &entry(b"k")).await?;
        unit.rollback().await;
        match verdict.claim {
            Claim::New => break,
            Claim::Busy if Instant::now() < until => tokio::time::sleep(Duration::from_millis(20)).await,
            claim => return Err(format!("the key of a refused unit is {claim:?}").into()),
        }
    }
    ensure(h.effect(record, "e").await? == 0, || "the effect of a refused unit is there".into())
}

async fn empty<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let mut unit = record.begin(LIMIT).await?;
    ensure(unit.claim(&[]).await?.is_empty(), || "verdicts for no entries".into())?;
    let ending = unit.commit().await;
    ensure(matches!(ending, Ending::Committed), || format!("{ending:?}"))
}

async fn many_in_a_row<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    for i in 0..20 {
        apply_committed(&*h, &record, &entry(format!("k{i}").as_bytes()), "e").await?;
    }
    let effect = h.effect(&record, "e").await?;
    ensure(effect == 20, || format!("{effect} effects of 20 units"))
}

async fn probe<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    record.probe().await?;
    Ok(())
}
