//! Five orders through the folder: one is tried twice, one ends in the dead letters.
//!
//! `cargo run -p custom-adapter [FOLDER]`; look into the folder afterwards.

#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use std::path::PathBuf;
use std::time::Duration;

use custom_adapter::FolderBroker;
use oncemq_core::{Broker, Consumer, Context, Error, Failure, Message, Shutdown};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let root = given.unwrap_or_else(|| std::env::temp_dir().join(format!("folder-{}", std::process::id())));
    let (broker, stop) = (FolderBroker::new(&root), Shutdown::new());

    let handler = |cx: Context, message: Message| async move {
        let order = String::from_utf8_lossy(message.body()).into_owned();
        println!("{order}, attempt {}", cx.attempt());
        match (order.as_str(), cx.attempt()) {
            ("order 2", 1) => Err(Failure::system("the warehouse does not answer")),
            ("order 4", _) => Err(Failure::business("unknown product")),
            _ => Ok(()),
        }
    };
    let consumer = Consumer::new("shop", broker.clone())
        .shutdown(stop.clone())
        .topic("orders")
        .retry("500ms dead-letter".parse()?)
        .unguarded(handler);
    print!("{}", consumer.plan().await?);

    let publisher = broker.publisher().await?;
    for n in 1..=5 {
        publisher.publish("orders", &Message::new(format!("order {n}")).with_id(n.to_string())).await?;
    }
    let (summary, ()) = tokio::join!(consumer.run(), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stop.stop();
    });
    println!("{:?}", summary?);
    for letter in broker.dead_letters("shop", "orders")? {
        let reason = letter.headers().get_str(oncemq_core::header::REASON).unwrap_or_default();
        println!("dead letter in {}: {} ({reason})", root.display(), String::from_utf8_lossy(letter.body()));
    }
    Ok(())
}
