//! Whether anybody listens at an address that did not answer.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Fault;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Addresses at which the last request failed.
///
/// After five connections that fail the library leaves an address alone for half a minute, also
/// when it is back after a second. So it is asked for a connection only once there is one to be
/// had.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    addresses: Mutex<HashSet<Box<str>>>,
}

impl Doubts {
    /// Nothing for an address that answered. Otherwise whether somebody listens there.
    pub(super) async fn knock(&self, address: &str) -> Result<(), Fault> {
        if !self.addresses().contains(address) {
            return Ok(());
        }
        let why = match timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(why)) => why.to_string(),
            Err(_) => "nobody takes the connection".to_owned(),
        };
        Err(Fault::NotSent(why))
    }

    /// What became of a request there.
    pub(super) fn note<T>(&self, address: &str, asked: &Result<T, Fault>) {
        let mut addresses = self.addresses();
        match asked {
            Ok(_) if addresses.is_empty() => {}
            Ok(_) => drop(addresses.remove(address)),
            Err(_) => drop(addresses.insert(address.into())),
        }
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, HashSet<Box<str>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_failed_is_asked_once_somebody_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let doubts = Doubts::default();
        doubts.knock(&address).await.unwrap();
        doubts.note(&address, &Err::<(), _>(Fault::NoAnswer("late".to_owned())));
        assert!(matches!(doubts.knock(&address).await, Err(Fault::NotSent(_))));
        let _listener = std::net::TcpListener::bind(&address).unwrap();
        doubts.knock(&address).await.unwrap();
        doubts.note(&address, &Ok(()));
        assert!(doubts.addresses().is_empty());
    }
}
