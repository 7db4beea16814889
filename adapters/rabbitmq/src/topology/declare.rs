//! Making and checking exchanges and queues, each on a channel of its own: a refusal closes
//! the channel.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Connection, ExchangeKind};
use oncemq_core::{Error, ErrorKind};

use super::{Names, millis};
use crate::config::QueueType;
use crate::error::{self, Difference};

const LIMIT: &str = "x-delivery-limit";

/// Whether a queue gives up messages that were returned too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Not this one.
    None,
    /// It was made before without saying so: the server's default counts.
    Default,
    /// It was made by somebody else, and a server does not tell.
    Unseen,
}

/// Makes what is missing. What exists with other arguments is an error.
///
/// `no_limit` says whether this server takes a delivery limit of -1 for "none".
pub(crate) async fn declare(
    connection: &Connection,
    queue_type: QueueType,
    names: &Names,
    single_active: bool,
    no_limit: bool,
) -> Result<Limit, Error> {
    let mut limit = if no_limit { Limit::Unseen } else { Limit::None };
    if let Some(exchange) = &names.exchange {
        declare_exchange(connection, exchange).await?;
        let mut arguments = queue_arguments(queue_type, no_limit);
        if single_active {
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        }
        limit = declare_queue(connection, &names.work, arguments).await?;
        bind(connection, &names.work, exchange).await?;
    } else {
        check_queue(connection, &names.work).await?;
    }
    for (delay, queue) in &names.rungs {
        let mut arguments = queue_arguments(QueueType::Quorum, no_limit);
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(millis(*delay).into()));
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(names.work.as_str()));
        // Handed on with a confirm, and refused instead of dropped when the queue is full.
        arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        arguments.insert("x-overflow".into(), text("reject-publish"));
        declare_queue(connection, queue, arguments).await?;
    }
    declare_queue(connection, &names.dead, queue_arguments(queue_type, no_limit)).await?;
    Ok(limit)
}

/// Checks that everything exists. Needs no right to configure, and sees no arguments.
pub(crate) async fn verify(connection: &Connection, names: &Names) -> Result<(), Error> {
    if let Some(exchange) = &names.exchange {
        check_exchange(connection, exchange).await?;
    }
    let rungs = names.rungs.iter().map(|(_, queue)| queue);
    for queue in [&names.work, &names.dead].into_iter().chain(rungs) {
        check_queue(connection, queue).await?;
    }
    Ok(())
}

fn queue_arguments(queue_type: QueueType, no_limit: bool) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), AMQPValue::LongString(queue_type.as_str().into()));
    if no_limit && queue_type == QueueType::Quorum {
        table.insert(LIMIT.into(), AMQPValue::LongLongInt(-1));
    }
    table
}

async fn declare_exchange(connection: &Connection, exchange: &ShortString) -> Result<(), Error> {
    let what = format!("cannot declare exchange {exchange}");
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    let kind = ExchangeKind::Fanout;
    match channel.exchange_declare(exchange.clone(), kind, options, FieldTable::default()).await {
        Ok(()) => close(&channel).await,
        Err(error) => Err(refused(&what, &error)),
    }
}

async fn bind(connection: &Connection, queue: &ShortString, exchange: &ShortString) -> Result<(), Error> {
    let what = format!("cannot bind queue {queue} to exchange {exchange}");
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    let (queue, exchange) = (queue.clone(), exchange.clone());
    let options = QueueBindOptions::default();
    match channel.queue_bind(queue, exchange, ShortString::default(), options, FieldTable::default()).await {
        Ok(()) => close(&channel).await,
        Err(error) => Err(refused(&what, &error)),
    }
}

async fn declare_queue(
    connection: &Connection,
    queue: &ShortString,
    arguments: FieldTable,
) -> Result<Limit, Error> {
    let error = match try_declare(connection, queue, arguments.clone()).await? {
        Ok(()) => return Ok(Limit::None),
        Err(error) => error,
    };
    let what = format!("cannot declare queue {queue}");
    let found = error::refusal(&error, AMQPSoftError::PRECONDITIONFAILED).and_then(Difference::read);
    if !found.is_some_and(|found| found.argument == LIMIT && found.is_absent()) {
        return Err(refused(&what, &error));
    }
    // Made under an older server: usable, and the plan says what it can lose.
    let mut rest = FieldTable::default();
    for (name, value) in arguments.inner().iter().filter(|(name, _)| name.as_str() != LIMIT) {
        rest.insert(name.clone(), value.clone());
    }
    match try_declare(connection, queue, rest).await? {
        Ok(()) => Ok(Limit::Default),
        Err(error) => Err(refused(&what, &error)),
    }
}

/// The inner result is the server's answer.
async fn try_declare(
    connection: &Connection,
    queue: &ShortString,
    arguments: FieldTable,
) -> Result<Result<(), lapin::Error>, Error> {
    let what = format!("cannot declare queue {queue}");
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(queue.clone(), options, arguments).await {
        Ok(_) => close(&channel).await.map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

async fn check_exchange(connection: &Connection, exchange: &ShortString) -> Result<(), Error> {
    let what = format!("cannot check exchange {exchange}");
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let kind = ExchangeKind::Fanout;
    match channel.exchange_declare(exchange.clone(), kind, options, FieldTable::default()).await {
        Ok(()) => close(&channel).await,
        Err(error) if error::is_missing(&error) => Err(missing("exchange", exchange, "of type fanout")),
        Err(error) => Err(refused(&what, &error)),
    }
}

async fn check_queue(connection: &Connection, queue: &ShortString) -> Result<(), Error> {
    let what = format!("cannot check queue {queue}");
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(queue.clone(), options, FieldTable::default()).await {
        Ok(_) => close(&channel).await,
        Err(error) if error::is_missing(&error) => Err(missing("queue", queue, "durable")),
        Err(error) => Err(refused(&what, &error)),
    }
}

fn missing(what: &str, name: &ShortString, how: &str) -> Error {
    Error::new(
        ErrorKind::Topology,
        format!(
            "{what} {name} does not exist; create it ({how}), or use Topology::Declare with an account that may"
        ),
    )
}

fn refused(what: &str, error: &lapin::Error) -> Error {
    let text = error::refusal(error, AMQPSoftError::PRECONDITIONFAILED);
    match text.and_then(Difference::read) {
        Some(found) => found.into(),
        None => hint(error::from_client(what, error)),
    }
}

/// Says what else can be done where a right is missing.
fn hint(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Access => {
            let text = format!("{error}; grant the right to configure it, or use Topology::Verify");
            Error::new(ErrorKind::Access, text)
        }
        _ => error,
    }
}

async fn close(channel: &lapin::Channel) -> Result<(), Error> {
    // Nothing hangs on the answer: the connection ends right afterwards.
    let _ = channel.close(200, "done".into()).await;
    Ok(())
}
