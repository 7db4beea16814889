use std::sync::Arc;

use oncemq_core::{Broker, Consumer, Context, Failure, Handler, Message};

#[derive(serde::Deserialize)]
struct Order {
    _id: String,
}

async fn function(_cx: Context, _order: Order) -> Result<(), Failure> {
    Ok(())
}

struct Service {
    name: String,
}

impl Handler<Context, Order> for Service {
    async fn call(&self, _cx: Context, _order: Order) -> Result<(), Failure> {
        let _ = self.name.len();
        Ok(())
    }
}

fn build(broker: impl Broker) -> Consumer {
    let shared = Arc::new(String::from("a client"));
    let capturing = move |_cx: Context, _order: Order| {
        let shared = shared.clone();
        async move {
            let _ = shared.len();
            Ok::<(), Failure>(())
        }
    };
    Consumer::new("points", broker)
        .topic("function")
        .unguarded(function)
        .topic("closure")
        .unguarded(capturing)
        .topic("struct")
        .unguarded(Service { name: String::new() })
        .topic("raw")
        .unguarded(async |_cx: Context, _message: Message| Ok(()))
}

fn spawned(consumer: Consumer) {
    let run = consumer.run();
    fn is_send<T: Send + 'static>(_: T) {}
    is_send(run);
}

fn main() {
    let _ = spawned;
}
