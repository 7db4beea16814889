//! Where the server is, for every test program that needs it.

/// Why the tests are left out, if somebody said so.
pub fn left_out() -> Option<String> {
    let without = std::env::var("ONCEMQ_WITHOUT").unwrap_or_default();
    let named = without.split(',').any(|name| name.trim() == "postgres");
    named.then(|| "ONCEMQ_WITHOUT names postgres".to_owned())
}

/// The server's address, or what to do.
pub fn url() -> Result<String, String> {
    std::env::var("ONCEMQ_POSTGRES_URL").map_err(|_| {
        "ONCEMQ_POSTGRES_URL is not set: run scripts/services start postgres and \
         eval \"$(scripts/services env postgres)\", or leave it out with ONCEMQ_WITHOUT=postgres"
            .to_owned()
    })
}

/// A name that no other test uses, in this run or another.
pub fn unique(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{what}_{:x}_{:x}_{next}", std::process::id(), now & 0xffff_ffff)
}
