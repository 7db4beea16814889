//! One transaction: claim, run, commit, and what its end means.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use super::drive::system;
use super::patience::until_up;
use super::{End, Running, Step};
use crate::fate::{Conflict, Findings, MessageFate, RecordFate, fate};
use crate::runtime::unguarded::{Ended, panic_text, timed_out};
use crate::{
    Claim, Class, Codec, Context, Ending, Error, ErrorKind, Handler, Record, Unit, Verdict, failpoint,
};

/// How long a run waits for a twin before it gives its place back.
const TWIN_WAIT: Duration = Duration::from_millis(100);
const TWIN_POLL: Duration = Duration::from_millis(10);
/// What the server gives a unit beyond the handler's time before it ends it itself.
const UNIT_MARGIN: Duration = Duration::from_secs(5);

impl<R: Record, H, C> Running<R, H, C> {
    /// One transaction: claim, run, commit.
    pub(super) async fn unit<M>(&mut self) -> Step
    where
        H: Handler<R::Loan, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        let shared = self.parts.topic.shared.clone();
        let (_beside, _alone);
        if self.alone {
            _alone = match self.turn.take() {
                Some(turn) => turn,
                None => shared.alone.clone().write_owned().await,
            };
        } else {
            _beside = match self.beside.take() {
                Some(beside) => beside,
                None => shared.alone.clone().read_owned().await,
            };
        }
        let mut unit = match self.claim().await {
            Ok(unit) => unit,
            Err(end) => return Step::End(end),
        };
        failpoint!("core.claimed");
        if shared.shutdown.is_stopping() {
            // It waited for its turn at the store while the consumer was told to stop.
            let _ = unit.rollback().await;
            return Step::Stopped;
        }
        let ended = self.call::<M>(&mut unit).await;
        failpoint!("core.ran");
        let ending = match &ended {
            Ok(()) => unit.commit().await,
            Err(_) => unit.rollback().await,
        };
        failpoint!("core.ended");
        self.judge(ended, ending).await
    }

    /// Opens a unit and claims the key in it, or says why nothing is run.
    async fn claim(&mut self) -> Result<R::Unit, End> {
        let limit = self.parts.topic.timeout.saturating_add(UNIT_MARGIN);
        let started = tokio::time::Instant::now();
        loop {
            let (unit, verdict) = until_up!(self, self.open_and_claim(limit));
            let note = verdict.note.unwrap_or_default();
            let mut found = Findings {
                failed_note: note.failed.is_some(),
                may_repeat: self.may_repeat,
                ..Findings::default()
            };
            let (mut class, mut reason) = (Class::Business, String::new());
            match verdict.claim {
                Claim::New => {
                    if let Some(failed) = note.failed {
                        (class, reason) = (failed.class, failed.reason);
                    }
                }
                Claim::Busy => found.twin = true,
                Claim::Done { same_body, conflict } => {
                    found.done = Some(if conflict { Conflict::Fields } else { Conflict::None });
                    self.tally.duplicate = !conflict;
                    self.tally.differs = !same_body;
                    if conflict {
                        reason = "key conflict: the key was done by a message with other fields".into();
                    }
                }
            }
            let end = fate(&found, &self.parts.topic.policy);
            if end.message == MessageFate::Proceed {
                return Ok(unit);
            }
            // Nothing was written, so how it ends does not matter.
            let _ = unit.rollback().await;
            if end.message == MessageFate::Defer && started.elapsed() < TWIN_WAIT {
                tokio::time::sleep(TWIN_POLL).await;
                continue;
            }
            return Err(End { message: end.message, record: end.record, class, reason });
        }
    }

    async fn open_and_claim(&self, limit: Duration) -> Result<(R::Unit, Verdict), Error> {
        let mut unit = self.parts.record.begin(limit).await?;
        failpoint!("core.begun");
        let mut verdicts = unit.claim(std::slice::from_ref(&self.entry)).await?;
        let verdict = verdicts
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the store gave no verdict for a claim"))?;
        Ok((unit, verdict))
    }

    /// Decodes and runs the handler, contained in time and against panics.
    async fn call<M>(&self, unit: &mut R::Unit) -> Result<(), Ended>
    where
        H: Handler<R::Loan, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        let attempt = self.entry.trail.attempt.saturating_add(1);
        let call = async {
            let decoded = self.parts.codec.decode(&self.message).map_err(Ended::Undecodable)?;
            let context = Context::new(self.message.clone(), self.entry.key.clone(), attempt);
            let loan = unit.lend(context);
            self.parts.handler.call(loan, decoded).await.map_err(Ended::Failed)
        };
        let timeout = self.parts.topic.timeout;
        match tokio::time::timeout(timeout, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Err(Ended::Panicked(panic_text(&*panic))),
            Err(_) => Err(Ended::Failed(timed_out(timeout))),
        }
    }

    /// What the handler said and how the store saw the unit end, together. The store's word
    /// is the stronger one.
    async fn judge(&mut self, ended: Result<(), Ended>, ending: Ending) -> Step {
        match (ending, ended) {
            (Ending::Committed, _) => Step::End(End {
                message: MessageFate::Accept,
                record: RecordFate::Done,
                class: Class::System,
                reason: String::new(),
            }),
            (Ending::RolledBack, Err(ended)) => Step::End(self.charge(ended)),
            (Ending::RolledBack, Ok(())) => Step::End(self.charge(system("the commit was rolled back"))),
            (Ending::Redo(_) | Ending::Unknown(_), _) => Step::Redo,
            (Ending::Refused(failure), _) => Step::End(self.charge(Ended::Failed(failure))),
            (Ending::NotReturned, _) => {
                Step::End(self.charge(system("the handler kept its transaction instead of dropping it")))
            }
            (Ending::Broken(_), _) => match self.parts.record.probe().await {
                Ok(()) => Step::Broke,
                Err(error) => {
                    self.parts.topic.shared.gate.wait(&error, 0, || self.parts.record.probe()).await;
                    Step::Again
                }
            },
        }
    }
}
