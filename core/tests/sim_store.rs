//! The simulated store passes the suite of every store: what the simulator shows about the
//! driver of guarded runs then holds for the real ones.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use oncemq_core::Error;
use oncemq_core::conformance::store::{StoreHarness, main as suite};
use oncemq_core::sim::{Faults, SimStore, SimTx};

/// Counts seeds.
struct Simulated(AtomicU64);

impl StoreHarness for Simulated {
    type Record = SimStore;

    async fn open(&self) -> Result<SimStore, Error> {
        Ok(SimStore::new(self.0.fetch_add(1, Relaxed), Faults::default()))
    }

    async fn add(&self, loan: &mut SimTx, name: &str) -> Result<(), Error> {
        loan.add(name.as_bytes()).await;
        Ok(())
    }

    async fn effect(&self, record: &SimStore, name: &str) -> Result<i64, Error> {
        Ok(record.effects().get(name.as_bytes()).copied().unwrap_or(0))
    }
}

fn main() -> ExitCode {
    suite(Simulated(AtomicU64::new(0)))
}
