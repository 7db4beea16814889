//! Asking the application what became of a transaction.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncemq_core::{Decision, Error, ErrorKind};
use tokio::runtime::Handle;

use super::TransactionId;
use crate::client::{Judge, Stored};
use crate::records;

/// What the application answers with.
pub(crate) type Check =
    Arc<dyn Fn(TransactionId) -> BoxFuture<'static, Result<Decision, Error>> + Send + Sync>;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a thread of the client waits beyond for the application's runtime.
const EXTRA: Duration = Duration::from_secs(1);

/// The application's answers, on its own runtime.
#[derive(Clone)]
pub(super) struct Asked {
    check: Check,
    runtime: Handle,
}

impl Asked {
    /// Answers come from the runtime that this is called on.
    pub(super) fn new(check: Check) -> Self {
        Self { check, runtime: Handle::current() }
    }

    pub(super) async fn ask(&self, id: TransactionId) -> Result<Decision, Error> {
        let late = |_| {
            Error::new(ErrorKind::Store, format!("the check of a transaction did not end within {LIMIT:?}"))
        };
        tokio::time::timeout(LIMIT, (self.check)(id)).await.map_err(late)?
    }
}

impl Judge for Asked {
    fn decide(&self, half: &Stored) -> Decision {
        // A half message of another client: nobody here can tell.
        let Some(id) = records::transaction_of(half) else { return Decision::Open };
        let id = TransactionId::read(id);
        let (answer, answered) = mpsc::sync_channel(1);
        let asked = self.clone();
        // Not blocked on: the runtime may be gone, and then the answer's sender is dropped.
        self.runtime.spawn(async move {
            let decision = asked.ask(id).await;
            // Nobody waits for one that is late.
            let _ = answer.send(decision);
        });
        match answered.recv_timeout(LIMIT + EXTRA) {
            Ok(Ok(decision)) => decision,
            Ok(Err(_)) | Err(_) => Decision::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(
        check: impl Fn(TransactionId) -> BoxFuture<'static, Result<Decision, Error>> + Send + Sync + 'static,
    ) -> Asked {
        Asked::new(Arc::new(check))
    }

    fn half(id: Option<&str>) -> Stored {
        let properties = id.map(|id| ("oncemq-transaction".into(), id.to_owned())).into_iter().collect();
        Stored { properties, ..Stored::default() }
    }

    async fn answer(asked: &Asked, half: Stored) -> Decision {
        let asked = asked.clone();
        tokio::task::spawn_blocking(move || asked.decide(&half)).await.unwrap()
    }

    #[tokio::test]
    async fn only_a_clear_answer_decides() {
        let asked = asked(|id| {
            Box::pin(async move {
                match id.as_str() {
                    "committed" => Ok(Decision::Committed),
                    "rolled back" => Ok(Decision::RolledBack),
                    "down" => Err(Error::new(ErrorKind::Store, "down")),
                    _ => panic!("a defect of the application"),
                }
            })
        });
        assert_eq!(answer(&asked, half(Some("committed"))).await, Decision::Committed);
        assert_eq!(answer(&asked, half(Some("rolled back"))).await, Decision::RolledBack);
        assert_eq!(answer(&asked, half(Some("down"))).await, Decision::Open);
        assert_eq!(answer(&asked, half(Some("other"))).await, Decision::Open);
        assert_eq!(answer(&asked, half(None)).await, Decision::Open);
    }

    #[test]
    fn an_application_that_is_gone_decides_nothing() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let asked = runtime.block_on(async { asked(|_| Box::pin(async { Ok(Decision::RolledBack) })) });
        drop(runtime);
        assert_eq!(asked.decide(&half(Some("t"))), Decision::Open);
    }
}
