//! Notes about single messages: failures, waits in process, crash marks.

use std::sync::Arc;

use libtest_mimic::Trial;

use super::{Outcome, StoreHarness, apply_committed, case, ensure, entry, entry_of, open};
use crate::{Claim, Class, Entry, Error, Failed, Marks, Message, Note, Record, Unit, Verdict};

pub(super) fn cases<H: StoreHarness>(harness: &Arc<H>, trials: &mut Vec<Trial>) {
    case(harness, trials, "note_of_a_failure_comes_with_the_claim", failed_note);
    case(harness, trials, "note_never_judges_another_message_of_the_key", other_message);
    case(harness, trials, "note_is_not_written_beside_a_done_key", beside_done);
    case(harness, trials, "note_without_a_key", without_key);
    case(harness, trials, "note_counts_and_takes_back_crash_marks", marks);
    case(harness, trials, "note_keeps_the_highest_attempt", attempts);
    case(harness, trials, "pg4_reason_of_any_text_is_kept", any_reason);
}

async fn look<R: Record>(record: &R, entry: &Entry) -> Result<Verdict, Error> {
    let (unit, verdict) = open(record, entry).await?;
    unit.rollback().await;
    Ok(verdict)
}

async fn note_of<R: Record>(record: &R, entry: &Entry) -> Result<Note, Error> {
    Ok(look(record, entry).await?.note.unwrap_or_default())
}

async fn failed_note<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let (first, failed) = (entry(b"k"), Failed::now(Class::Business, "unknown user"));
    ensure(record.fail(&first, &failed).await?, || "the note was not written".into())?;
    let verdict = look(&record, &first).await?;
    ensure(verdict.claim == Claim::New, || format!("a failed key is {:?}", verdict.claim))?;
    let note = verdict.note.and_then(|note| note.failed);
    let seen = note.as_ref().map(|failed| (failed.class, failed.reason.as_str()));
    ensure(seen == Some((Class::Business, "unknown user")), || format!("the note says {seen:?}"))?;
    // A second final failure of the same message changes nothing that matters.
    ensure(record.fail(&first, &failed).await?, || "writing it again was refused".into())
}

async fn other_message<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let first = entry_of("consumer", "kind", b"k", &Message::new("one"));
    let second = entry_of("consumer", "kind", b"k", &Message::new("two"));
    record.fail(&first, &Failed::now(Class::System, "gone")).await?;
    let note = note_of(&record, &second).await?;
    ensure(note == Note::default(), || format!("another message got the note {note:?}"))?;
    apply_committed(&*h, &record, &second, "e").await?;
    let claim = look(&record, &first).await?.claim;
    let done = matches!(claim, Claim::Done { .. });
    ensure(done, || format!("a done key with a failed note is {claim:?}"))
}

async fn beside_done<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    apply_committed(&*h, &record, &entry(b"k"), "e").await?;
    let written = record.fail(&entry(b"k"), &Failed::now(Class::System, "late")).await?;
    ensure(!written, || "a failed note was written for a done key".into())
}

async fn without_key<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let mut keyless = entry(b"x");
    keyless.key = None;
    let written = record.fail(&keyless, &Failed::now(Class::Business, "undecodable")).await?;
    ensure(written, || "a note without a key was refused".into())
}

async fn marks<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let id = entry(b"k").trail.id;
    let mark = async |below| Ok::<_, Error>(record.mark(&id, below).await?.map(|note| note.marks));
    for (below, expected) in [(1, Some(1)), (1, None), (3, Some(2)), (3, Some(3)), (3, None), (2, None)] {
        let marks = mark(below).await?;
        ensure(marks == expected, || format!("a mark below {below} came back as {marks:?}"))?;
    }
    record.unmark(&id, Marks::One).await?;
    let marks = note_of(&record, &entry(b"k")).await?.marks;
    ensure(marks == 2, || format!("{marks} marks after one of three was taken back"))?;
    record.unmark(&id, Marks::All).await?;
    record.unmark(&id, Marks::One).await?;
    let marks = note_of(&record, &entry(b"k")).await?.marks;
    ensure(marks == 0, || format!("{marks} marks after all were taken back"))?;
    let marks = mark(1).await?;
    ensure(marks == Some(1), || format!("a new mark came back as {marks:?}"))
}

async fn attempts<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let id = entry(b"k").trail.id;
    record.charge(&id, 2).await?;
    record.charge(&id, 1).await?;
    let note = note_of(&record, &entry(b"k")).await?;
    ensure(note.attempts == 2, || format!("{} attempts instead of 2", note.attempts))?;
    let marked = record.mark(&id, 1).await?.map(|note| note.attempts);
    ensure(marked == Some(2), || format!("the mark's note has {marked:?} attempts"))?;
    record.charge(&id, u32::MAX).await?;
    let note = note_of(&record, &entry(b"k")).await?;
    ensure(note.attempts >= 2_000_000_000, || format!("the largest count came back as {}", note.attempts))
}

async fn any_reason<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let record = h.open().await?;
    let long = "é".repeat(50_000);
    for (i, reason) in ["a\0b", "😀\n\t", "' OR 1=1 --", "", long.as_str()].into_iter().enumerate() {
        let entry = entry(format!("k{i}").as_bytes());
        let written = record.fail(&entry, &Failed::now(Class::System, reason)).await?;
        ensure(written, || format!("reason {i} was not written"))?;
        let note = note_of(&record, &entry).await?;
        ensure(note.failed.is_some(), || format!("reason {i} is not there"))?;
    }
    Ok(())
}
