//! The suite of every broker.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use custom_adapter::FolderBroker;
use oncemq_core::conformance::Harness;
use oncemq_core::{Broker, Capabilities, Error, Message};

struct Folder(FolderBroker);

#[async_trait]
impl Harness for Folder {
    async fn broker(&self) -> Result<Arc<dyn Broker>, Error> {
        Ok(Arc::new(self.0.clone()))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn redelivery(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn shortest_delay(&self) -> Duration {
        Duration::from_millis(300)
    }

    async fn dead_letters(&self, consumer: &str, topic: &str) -> Result<Vec<Message>, Error> {
        self.0.dead_letters(consumer, topic)
    }
}

fn main() -> std::io::Result<ExitCode> {
    let root = tempfile::tempdir()?;
    Ok(oncemq_core::conformance::main(Folder(FolderBroker::new(root.path()))))
}
