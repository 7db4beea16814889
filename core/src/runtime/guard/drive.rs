//! Unit after unit, until the message has its outcome.

use std::time::Duration;

use super::patience::until_up;
use super::{End, Running, Step};
use crate::fate::{Findings, MessageFate, RecordFate, Run, fate};
use crate::retry::jittered;
use crate::runtime::Outcome;
use crate::runtime::settle::ack_of;
use crate::runtime::unguarded::Ended;
use crate::{Ack, Codec, Failed, Failure, Handler, Marks, Ordering, Record, failpoint};

/// Runs of one message that are undone by nobody's fault end after so many, then they are
/// charged.
const REDOS_MAX: u32 = 10;

impl<R: Record, H, C> Running<R, H, C> {
    pub(super) async fn drive<M>(&mut self) -> Outcome
    where
        H: Handler<R::Loan, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        let mut redos = 0;
        let mut broke = false;
        loop {
            let step = match &self.key_problem {
                Some(why) => {
                    let ended = Ended::Undecodable(why.clone());
                    Step::End(self.charge(ended))
                }
                None => self.unit::<M>().await,
            };
            let end = match step {
                Step::End(end) => end,
                Step::Again => continue,
                Step::Stopped => return Outcome { ack: Ack::Release, tally: self.tally },
                Step::Redo if redos < REDOS_MAX => {
                    redos += 1;
                    self.tally.redone += 1;
                    let wait = Duration::from_millis(10).saturating_mul(redos);
                    tokio::time::sleep(jittered(wait, self.seed())).await;
                    continue;
                }
                Step::Broke if !broke => {
                    broke = true;
                    self.tally.redone += 1;
                    continue;
                }
                Step::Redo => {
                    self.charge(system(format!("undone {REDOS_MAX} times by deadlocks or lost commits")))
                }
                Step::Broke => {
                    self.charge(system("its run broke the connection twice while the store was up"))
                }
            };
            match end.message {
                MessageFate::Retry(delay) if self.parts.topic.ordering == Ordering::Ordered => {
                    if let Some(outcome) = self.wait_in_place(delay).await {
                        return outcome;
                    }
                }
                _ => return self.finish(end).await,
            }
        }
    }

    /// The ladder waits here: later messages of the key queue behind this run. The attempts are
    /// noted, so that whoever goes on counts from there. Returns how it ends, if not by another
    /// run.
    async fn wait_in_place(&mut self, delay: Duration) -> Option<Outcome> {
        let trail = &self.entry.trail;
        until_up!(self, self.parts.record.charge(&trail.id, trail.attempt));
        // The run is over and the process lives: what waits is not blamed, nor waited for.
        self.take_marks(Marks::All).await;
        (self.beside, self.turn, self.alone) = (None, None, false);
        if !self.parts.topic.wait_for_rung(delay, self.seed(), &self.leaving).await {
            return Some(Outcome { ack: Ack::Release, tally: self.tally });
        }
        self.mark().await
    }

    /// Charges an attempt and looks up what follows.
    pub(super) fn charge(&mut self, ended: Ended) -> End {
        let attempt = self.entry.trail.attempt.saturating_add(1);
        self.entry.trail.attempt = attempt;
        let mut found = Findings { attempt, ..Findings::default() };
        let (class, reason) = ended.describe(&mut found);
        self.tally.panicked |= found.run == Some(Run::Panicked);
        let end = fate(&found, &self.parts.topic.policy);
        End { message: end.message, record: end.record, class, reason }
    }

    /// Writes what the decision asks of the record, then names the ack.
    pub(super) async fn finish(&mut self, end: End) -> Outcome {
        let mut message = end.message;
        if end.record == RecordFate::Failed {
            let failed = Failed::now(end.class, end.reason.clone());
            let written = until_up!(self, self.parts.record.fail(&self.entry, &failed));
            failpoint!("core.noted");
            if !written {
                message = MessageFate::Accept;
                self.tally.duplicate = true;
            }
        }
        let trail = self.entry.trail.clone();
        Outcome { ack: ack_of(message, trail, end.class, &end.reason), tally: self.tally }
    }

    /// A number that differs between messages and attempts.
    fn seed(&self) -> u64 {
        self.entry.trail.id.seed().wrapping_add(u64::from(self.entry.trail.attempt))
    }
}

pub(super) fn system(reason: impl Into<String>) -> Ended {
    Ended::Failed(Failure::system(reason.into()))
}
