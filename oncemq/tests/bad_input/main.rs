//! What people get wrong: one line that says what is wrong and what to do, soon, and never
//! with a password.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod kafka;
mod payloads;
mod servers;
mod settings;
mod stores;
mod urls;

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use oncemq::{Error, ErrorKind};

/// The password in every URL here. It must not appear anywhere.
const PASSWORD: &str = "s3cret";
/// The longest a mistake may take to be told.
const SOON: Duration = Duration::from_secs(12);

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut tests = Vec::new();
    urls::tests(&mut tests);
    settings::tests(&mut tests);
    stores::tests(&mut tests);
    payloads::tests(&mut tests);
    servers::tests(&mut tests);
    kafka::tests(&mut tests);
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// A test on a runtime of its own.
fn test<F, Fut>(name: &str, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let run = || {
            runtime.block_on(async {
                tokio::time::timeout(Duration::from_secs(60), body()).await.expect("the test hangs");
            });
        };
        let result = catch_unwind(AssertUnwindSafe(run));
        runtime.shutdown_timeout(Duration::from_secs(1));
        result.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let fixed = || panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            Failed::from(text.or_else(fixed).unwrap_or_default())
        })
    })
}

/// Whether a server is left out by name.
fn is_left_out(server: &str) -> bool {
    std::env::var("ONCEMQ_WITHOUT").unwrap_or_default().split(',').any(|name| name.trim() == server)
}

/// The URL of a server, which must be there.
fn server_url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; run `scripts/test`, or leave the server out with ONCEMQ_WITHOUT")
    })
}

/// A port that was free a moment ago.
fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The error of a mistake: of this kind, one line, with these words, without the password.
fn refused<T: fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) -> String {
    let error = match result {
        Ok(value) => panic!("{value:?} in place of {kind:?} with {words:?}"),
        Err(error) => error,
    };
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    for shown in [&text, &format!("{error:?}"), &format!("{error:#?}")] {
        assert!(!shown.contains('\n') && !shown.contains('\r'), "several lines: {shown}");
        assert!(!shown.contains(PASSWORD), "the password is in: {shown}");
    }
    assert!(text.len() > 20 && text.len() < 600, "{} bytes: {text}", text.len());
    text
}

/// As [`refused`], in time.
async fn refused_soon<T: fmt::Debug>(
    result: impl Future<Output = Result<T, Error>>,
    kind: ErrorKind,
    words: &[&str],
) -> String {
    let start = Instant::now();
    let text = refused(result.await, kind, words);
    assert!(start.elapsed() < SOON, "only after {:?}: {text}", start.elapsed());
    text
}
