//! What users write: handlers, and how payloads become their argument.

use std::future::Future;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::{Failure, KeyValue, Message};

/// A function that changes the business for one message.
///
/// `Cx` is an owned context: the loan of a transaction when an inbox guards the handler, a
/// [`Context`] when nothing does. `M` is the decoded payload. Functions and closures of two
/// arguments are handlers, and structs may be:
///
/// ```
/// use oncemq_core::{Context, Failure, Handler, Message};
///
/// async fn log(_cx: Context, message: Message) -> Result<(), Failure> {
///     if message.body().is_empty() {
///         return Err(Failure::business("an empty order"));
///     }
///     Ok(())
/// }
///
/// // A closure that owns something clones it for each call.
/// let client = std::sync::Arc::new(String::from("a client"));
/// let closure = move |_cx: Context, _message: Message| {
///     let client = client.clone();
///     async move {
///         let _ = client.len();
///         Ok::<(), Failure>(())
///     }
/// };
///
/// fn is_handler<H: Handler<Context, Message>>(_: &H) {}
/// is_handler(&log);
/// is_handler(&closure);
/// ```
///
/// A handler may be run more than once for a message, and its future may be dropped at any
/// await when its time is up or the process stops.
pub trait Handler<Cx, M>: Send + Sync + 'static {
    /// Handles one message.
    fn call(&self, cx: Cx, message: M) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl<F, Fut, Cx, M> Handler<Cx, M> for F
where
    F: Fn(Cx, M) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    fn call(&self, cx: Cx, message: M) -> impl Future<Output = Result<(), Failure>> + Send {
        self(cx, message)
    }
}

/// What is known about the run of a handler.
#[derive(Debug, Clone)]
pub struct Context {
    message: Message,
    key: Option<Arc<KeyValue>>,
    attempt: u32,
}

impl Context {
    /// A context, for stores that lend it and for tests of handlers.
    pub fn new(message: Message, key: Option<KeyValue>, attempt: u32) -> Self {
        Self::shared(message, key.map(Arc::new), attempt)
    }

    pub(crate) fn shared(message: Message, key: Option<Arc<KeyValue>>, attempt: u32) -> Self {
        Self { message, key, attempt }
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The idempotency key, if one was asked for and found.
    pub fn key(&self) -> Option<&KeyValue> {
        self.key.as_deref()
    }

    /// Which charged run this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// Turns a payload into the argument of a handler.
///
/// A failure here means that the message can never be handled: it is dead-lettered at once,
/// byte-identical.
pub trait Codec<M>: Send + Sync + 'static {
    /// Decodes one message.
    ///
    /// # Errors
    /// Says what in the payload does not fit.
    fn decode(&self, message: &Message) -> Result<M, String>;
}

/// JSON by serde; the default. A handler that takes a [`Message`] gets it undecoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl<M: DeserializeOwned> Codec<M> for Json {
    fn decode(&self, message: &Message) -> Result<M, String> {
        serde_json::from_slice(message.body()).map_err(|e| format!("not the expected JSON: {e}"))
    }
}

impl Codec<Message> for Json {
    fn decode(&self, message: &Message) -> Result<Message, String> {
        Ok(message.clone())
    }
}

impl<M, F> Codec<M> for F
where
    F: Fn(&Message) -> Result<M, String> + Send + Sync + 'static,
{
    fn decode(&self, message: &Message) -> Result<M, String> {
        self(message)
    }
}
