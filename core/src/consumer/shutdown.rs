//! Ending consumers.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Ends consumers: the first call lets running handlers finish, the second ends at once.
///
/// Clones share one state, so one value ends any number of consumers of a process.
#[derive(Clone)]
pub struct Shutdown {
    stage: Arc<watch::Sender<Stage>>,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Running,
    /// Nothing new is started.
    Stop,
    /// Nothing is waited for.
    Now,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// A shutdown that nobody has asked for yet.
    pub fn new() -> Self {
        Self { stage: Arc::new(watch::Sender::new(Stage::Running)) }
    }

    /// A shutdown that SIGINT and SIGTERM ask for: the first signal stops, a second one
    /// ends at once. Must be called inside a runtime.
    ///
    /// # Errors
    /// [`Config`](crate::ErrorKind::Config) if the signal handlers cannot be installed.
    pub fn on_signals() -> Result<Self, crate::Error> {
        let shutdown = Self::new();
        let mut signals = Signals::install().map_err(|error| {
            crate::Error::with_source(
                crate::ErrorKind::Config,
                "cannot install the handlers for SIGINT and SIGTERM; pass a Shutdown of your own",
                error,
            )
        })?;
        let stop = shutdown.clone();
        tokio::spawn(async move {
            loop {
                signals.next().await;
                stop.stop();
            }
        });
        Ok(shutdown)
    }

    /// Asks consumers to stop; a second call ends them at once.
    pub fn stop(&self) {
        self.stage.send_modify(|stage| {
            *stage = match stage {
                Stage::Running => Stage::Stop,
                Stage::Stop | Stage::Now => Stage::Now,
            };
        });
    }

    /// Whether a stop was asked for.
    pub fn is_stopping(&self) -> bool {
        self.is_reached(Stage::Stop)
    }

    /// Whether nothing is to be waited for any more: a stop was asked for twice.
    pub fn is_ending(&self) -> bool {
        self.is_reached(Stage::Now)
    }

    pub(crate) fn is_reached(&self, stage: Stage) -> bool {
        *self.stage.borrow() >= stage
    }

    pub(crate) async fn reached(&self, stage: Stage) {
        let mut seen = self.stage.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = seen.wait_for(|now| *now >= stage).await;
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shutdown").field(&*self.stage.borrow()).finish()
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn install() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
