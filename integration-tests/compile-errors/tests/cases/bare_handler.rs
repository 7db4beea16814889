use oncemq_core::{Broker, Consumer, Context, Failure, Message};

async fn handler(_cx: Context, _message: Message) -> Result<(), Failure> {
    Ok(())
}

fn build(broker: impl Broker) -> Consumer {
    Consumer::new("points", broker).topic("orders").handler(handler)
}

fn main() {}
