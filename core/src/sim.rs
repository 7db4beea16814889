//! A simulated world: a store with crash semantics, a process that can die at every step,
//! and virtual time.
//!
//! The consumer, its workers and the driver of guarded runs are the real ones. Only the
//! store, the clock and the broker's network are simulated; the broker is any
//! [`Broker`](crate::Broker) that works in virtual time. One seed names one history:
//! running it again gives the same.
//!
//! Not part of the API promise.

mod rng;
mod steps;
mod store;
mod world;

pub use rng::Rng;
pub use steps::Steps;
pub(crate) use steps::current;
pub use store::{Faults, SimStore, SimTx, SimUnit};
pub use world::{Process, World};
