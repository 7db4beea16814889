//! A connection to publish on.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use oncemq_core::{Error, ErrorKind, failpoint};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::config::Config;
use crate::connection::{Backoff, connect};
use crate::error;

/// Messages under way at once.
const CHANNELS_MAX: usize = 64;
/// How often a blocked connection is looked at.
const BLOCKED_LOOK: Duration = Duration::from_millis(50);

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) exchange: &'a ShortString,
    pub(crate) routing_key: &'a ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: &'a [u8],
}

/// A connection with channels that have one message under way each.
///
/// The client gives a returned message to whichever confirmation comes next, so with
/// several under way on one channel an unroutable message could pass for a stored one.
#[derive(Debug)]
pub(crate) struct Pool {
    config: Arc<Config>,
    /// What the broker's list of connections shows.
    name: String,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// The same link, to be looked at without waiting.
    seen: Mutex<Option<Arc<Link>>>,
    places: Semaphore,
    closed: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Link {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
}

impl Pool {
    pub(crate) fn new(config: Arc<Config>, name: String) -> Self {
        Self {
            config,
            name,
            link: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
            places: Semaphore::new(CHANNELS_MAX),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) async fn connect(&self) -> Result<(), Error> {
        self.link().await.map(drop)
    }

    /// Whether the broker has stopped reading from the connection.
    pub(crate) fn blocked(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.as_ref().is_some_and(|link| link.connection.status().blocked())
    }

    /// Waits for a connection that the broker reads from.
    ///
    /// # Errors
    /// As connecting.
    pub(crate) async fn writable(&self) -> Result<Arc<Link>, Error> {
        loop {
            let link = self.link().await?;
            if !link.connection.status().blocked() {
                return Ok(link);
            }
            sleep(BLOCKED_LOOK).await;
        }
    }

    /// Sends a message and waits for its confirmation, as long as the connection lives.
    ///
    /// Dropped half-way it closes its channel; the message may be stored or not.
    ///
    /// # Errors
    /// [`Unroutable`](ErrorKind::Unroutable) if no queue took it, or the exchange does not
    /// exist; [`Unconfirmed`](ErrorKind::Unconfirmed) if the broker refused it or was lost
    /// before it answered; [`TooLarge`](ErrorKind::TooLarge); [`Connection`](ErrorKind::Connection)
    /// if nothing was sent.
    pub(crate) async fn send(&self, outgoing: &Outgoing<'_>) -> Result<(), Error> {
        let _place = self.places.acquire().await.map_err(|_| closed())?;
        let link = self.writable().await?;
        fits(outgoing, link.connection.configuration().frame_max())?;
        let channel = link.channel().await?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (outgoing.exchange.clone(), outgoing.routing_key.clone());
        let properties = outgoing.properties.clone();
        let lost = |error| unconfirmed(outgoing, &error);
        let confirm = channel.basic_publish(exchange, key, options, outgoing.body, properties).await;
        let confirm = confirm.map_err(lost)?;
        failpoint!("rabbitmq.published");
        let confirmation = confirm.await.map_err(lost)?;
        link.give_back(channel);
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Err(unroutable(outgoing)),
            Confirmation::Nack(None) => Err(Error::new(
                ErrorKind::Unconfirmed,
                format!(
                    "RabbitMQ refused a message to {}: the queue is full or cannot store it",
                    to(outgoing)
                ),
            )),
            Confirmation::NotRequested => {
                Err(Error::new(ErrorKind::Internal, "a channel without confirmations was used"))
            }
        }
    }

    /// As [`send`](Self::send), trying for a connection until there is one.
    pub(crate) async fn send_when_connected(&self, outgoing: &Outgoing<'_>) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        loop {
            match self.send(outgoing).await {
                Err(error) if error.kind() == ErrorKind::Connection => sleep(backoff.next()).await,
                result => return result,
            }
        }
    }

    /// Waits for what is under way and closes, within this time.
    pub(crate) async fn close(&self, limit: Duration) {
        self.closed.store(true, SeqCst);
        let close = async {
            let all = u32::try_from(CHANNELS_MAX).unwrap_or(u32::MAX);
            let idle = self.places.acquire_many(all).await;
            let link = self.link.lock().await.take();
            if let Some(link) = link {
                // An error means that it is closed already.
                let _ = link.connection.close(200, "done".into()).await;
            }
            drop(idle);
        };
        // A broker that does not answer is left alone.
        let _ = timeout(limit, close).await;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn link(&self) -> Result<Arc<Link>, Error> {
        if self.closed.load(SeqCst) {
            return Err(closed());
        }
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| link.connection.status().connected()) {
            return Ok(link.clone());
        }
        *slot = None;
        let connection = connect(&self.config, &self.name).await?;
        let link = Arc::new(Link { connection, idle: Mutex::default() });
        *slot = Some(link.clone());
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(link.clone());
        Ok(link)
    }
}

impl Link {
    async fn channel(&self) -> Result<Channel, Error> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let lost = |error| Error::new(ErrorKind::Connection, error::from_client(OPEN, &error).to_string());
        let channel = self.connection.create_channel().await.map_err(lost)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(lost)?;
        Ok(channel)
    }

    fn give_back(&self, channel: Channel) {
        if channel.status().connected() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
        }
    }
}

const OPEN: &str = "cannot open a channel to publish on";

/// The broker's answer is lost, or it is a refusal.
fn unconfirmed(outgoing: &Outgoing<'_>, error: &lapin::Error) -> Error {
    if error::is_missing(error) {
        return unroutable(outgoing);
    }
    let what = format!("RabbitMQ did not confirm a message to {}", to(outgoing));
    let found = error::from_client(&what, error);
    match found.kind() {
        ErrorKind::Access | ErrorKind::TooLarge => found,
        _ => Error::new(ErrorKind::Unconfirmed, found.to_string()),
    }
}

fn unroutable(outgoing: &Outgoing<'_>) -> Error {
    let text = match outgoing.exchange.as_str() {
        "" => format!("queue {} does not exist; create it", outgoing.routing_key),
        exchange => {
            format!("no queue is bound to exchange {exchange}, or it does not exist; start its consumer once")
        }
    };
    Error::new(ErrorKind::Unroutable, text)
}

fn to(outgoing: &Outgoing<'_>) -> String {
    match outgoing.exchange.as_str() {
        "" => format!("queue {}", outgoing.routing_key),
        exchange => format!("exchange {exchange}"),
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the RabbitMQ publisher is closed")
}

/// Properties travel in one frame. The client waits for ever for room for a larger one.
fn fits(outgoing: &Outgoing<'_>, frame_max: u32) -> Result<(), Error> {
    let size = size_of(&outgoing.properties);
    let most = usize::try_from(frame_max).unwrap_or(usize::MAX);
    if most > 0 && size > most {
        let text = format!(
            "a message to {} has {size} bytes of headers and properties; RabbitMQ takes at most {most}",
            to(outgoing)
        );
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    Ok(())
}

fn size_of(properties: &BasicProperties) -> usize {
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.message_id(),
        properties.kind(),
        properties.app_id(),
    ];
    let texts: usize = texts.into_iter().flatten().map(|text| text.as_str().len() + 1).sum();
    // The frame around it, flags, and the properties of a fixed size.
    64 + texts + properties.headers().as_ref().map_or(0, size_of_table)
}

fn size_of_table(table: &FieldTable) -> usize {
    4 + table.into_iter().map(|(name, value)| name.as_str().len() + 1 + size_of_value(value)).sum::<usize>()
}

fn size_of_value(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::LongString(text) => 4 + text.len(),
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.as_slice().len(),
        AMQPValue::FieldArray(array) => 4 + array.as_slice().iter().map(size_of_value).sum::<usize>(),
        AMQPValue::FieldTable(table) => size_of_table(table),
        _ => 8,
    }
}
