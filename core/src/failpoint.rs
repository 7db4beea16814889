//! Named places where a test can kill, stall or crash the process.
//!
//! Without the feature `failpoints` they compile to nothing. With it, a test sets what
//! happens at each place with [`arm`], or for a child process through the environment
//! variable `ONCEMQ_FAILPOINT=name=action[@count]` with the actions `kill`, `stall` and
//! `sleep:MILLISECONDS`; `count` is the pass at which it happens, 1 unless given.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a test does when a place is passed. The returned future is awaited there.
pub type Hook = dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

fn hook() -> &'static Mutex<Option<Arc<Hook>>> {
    static HOOK: OnceLock<Mutex<Option<Arc<Hook>>>> = OnceLock::new();
    HOOK.get_or_init(|| Mutex::new(from_env()))
}

/// Sets what happens at every place of this process; `None` takes it back.
pub fn arm(new: Option<Arc<Hook>>) {
    *hook().lock().unwrap_or_else(PoisonError::into_inner) = new;
}

/// Passes a place. Called through [`failpoint!`](crate::failpoint!).
pub async fn reach(name: &'static str) {
    #[cfg(feature = "sim")]
    if let Some(process) = crate::sim::current() {
        return process.pass().await;
    }
    let armed = hook().lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(armed) = armed {
        armed(name).await;
    }
}

fn from_env() -> Option<Arc<Hook>> {
    let text = std::env::var("ONCEMQ_FAILPOINT").ok()?;
    let (wanted, action) = text.split_once('=')?;
    let (action, pass) = action.split_once('@').unwrap_or((action, "1"));
    let (wanted, action) = (wanted.to_owned(), action.to_owned());
    let passes_left = Mutex::new(pass.parse::<u32>().ok()?);
    Some(Arc::new(move |name| {
        let mut left = passes_left.lock().unwrap_or_else(PoisonError::into_inner);
        if name == wanted {
            *left = left.saturating_sub(1);
        }
        let hit = name == wanted && *left == 0;
        let action = if hit { action.clone() } else { String::new() };
        Box::pin(async move { act(&action).await })
    }))
}

async fn act(action: &str) {
    match action.split_once(':') {
        None if action == "kill" => kill(),
        None if action == "stall" => std::future::pending().await,
        Some(("sleep", millis)) => {
            let millis = millis.parse().unwrap_or(0);
            tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
        }
        _ => {}
    }
}

/// Ends the process as SIGKILL does: no destructor, no handler, no flush.
fn kill() -> ! {
    let pid = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &pid]).status();
    // Only reached where there is no such command.
    std::process::abort()
}
