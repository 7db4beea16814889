//! Making and checking exchanges and queues, each on a channel of its own: a refusal closes
//! the channel.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Connection, ExchangeKind};
use oncemq_core::{Error, ErrorKind};

use super::{Names, millis};
use crate::config::{Config, QueueType};
use crate::error::{self, Difference};

/// Asked for wherever it is known: messages are never dropped for having been returned.
const NO_LIMIT: &str = "x-delivery-limit";

/// Whether the broker gives up messages that were returned too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit, by declaration.
    Off,
    /// This broker has no limit unless asked for one.
    Unknown,
    /// The queue was made before without the declaration.
    Default,
}

/// Makes what is missing. What exists with other arguments is an error.
pub(crate) async fn declare(
    connection: &Connection,
    config: &Config,
    names: &Names,
    single_active: bool,
) -> Result<Limit, Error> {
    let known = config.queue_type == QueueType::Quorum && knows_no_limit(connection, &names.work).await?;
    let mut limit = if known { Limit::Off } else { Limit::Unknown };
    if let Some(exchange) = &names.exchange {
        declare_exchange(connection, exchange).await?;
        let mut arguments = queue_arguments(config.queue_type, known);
        if single_active {
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        }
        if declare_queue(connection, &names.work, arguments).await? {
            limit = Limit::Default;
        }
        bind(connection, &names.work, exchange).await?;
    } else {
        check_queue(connection, &names.work).await?;
    }
    for (delay, queue) in &names.rungs {
        let mut arguments = queue_arguments(QueueType::Quorum, known);
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(millis(*delay).into()));
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(names.work.as_str()));
        // Handed on with a confirm, and refused instead of dropped when the queue is full.
        arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        arguments.insert("x-overflow".into(), text("reject-publish"));
        declare_queue(connection, queue, arguments).await?;
    }
    declare_queue(connection, &names.dead, queue_arguments(config.queue_type, known)).await?;
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
        table.insert(NO_LIMIT.into(), AMQPValue::LongLongInt(-1));
    }
    table
}

/// Asks for a quorum queue that cannot exist. The first thing the broker finds wrong with
/// it says whether it knows that -1 means "no limit"; nothing is made either way.
async fn knows_no_limit(connection: &Connection, work: &ShortString) -> Result<bool, Error> {
    let what = "cannot ask RabbitMQ what it knows";
    // Of a name that is within this account's rights, but not anybody's queue.
    let name = ShortString::try_new(format!("{work}.probe")).unwrap_or_else(|_| work.clone());
    let channel = connection.create_channel().await.map_err(|e| error::from_client(what, &e))?;
    let options = QueueDeclareOptions { durable: false, auto_delete: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(name, options, queue_arguments(QueueType::Quorum, true)).await {
        Ok(_) => Ok(true),
        Err(error) => match error::refusal(&error, AMQPSoftError::PRECONDITIONFAILED) {
            Some(text) => Ok(!text.contains(NO_LIMIT)),
            None => Err(error::from_client(what, &error)),
        },
    }
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

/// Returns whether the queue was there before without the declaration of no limit.
async fn declare_queue(
    connection: &Connection,
    queue: &ShortString,
    arguments: FieldTable,
) -> Result<bool, Error> {
    let what = format!("cannot declare queue {queue}");
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let error = match channel.queue_declare(queue.clone(), options, arguments.clone()).await {
        Ok(_) => return close(&channel).await.map(|()| false),
        Err(error) => error,
    };
    let text = error::refusal(&error, AMQPSoftError::PRECONDITIONFAILED);
    let no_limit_differs =
        text.and_then(Difference::read).is_some_and(|found| found.argument == NO_LIMIT && found.is_absent());
    if !no_limit_differs {
        return Err(refused(&what, &error));
    }
    // Made by a broker that did not know it: usable, and the plan says what it can lose.
    let mut rest = FieldTable::default();
    for (name, value) in arguments.inner().iter().filter(|(name, _)| name.as_str() != NO_LIMIT) {
        rest.insert(name.clone(), value.clone());
    }
    let channel = connection.create_channel().await.map_err(|e| error::from_client(&what, &e))?;
    match channel.queue_declare(queue.clone(), options, rest).await {
        Ok(_) => close(&channel).await.map(|()| true),
        Err(error) => Err(refused(&what, &error)),
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
        None => error::from_client(what, error),
    }
}

async fn close(channel: &lapin::Channel) -> Result<(), Error> {
    // Nothing hangs on the answer: the connection ends right afterwards.
    let _ = channel.close(200, "done".into()).await;
    Ok(())
}
