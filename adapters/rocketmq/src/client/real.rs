//! The client library, and nothing else of the adapter.
//!
//! Of the library's consumers and producers none is used to consume or to send: a consumer of its
//! own accord fetches, retries and commits in ways that cannot be seen from outside. Its
//! connections, its codec and its names of routes are.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cheetah_string::CheetahString;
use futures_util::future::BoxFuture;
use oncemq_core::{Error, ErrorKind};
use rocketmq_client_rust::{
    AclClientRPCHook, ClientConfig, ClientError, ClientInstanceHandle, ClientRpcHook, ClientRuntime,
    ClientRuntimeConfig, SessionCredentials, TelemetryHandle,
};
use rocketmq_model::common::message::message_client_id_setter::MessageClientIDSetter;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_protocol::common::message::message_decoder::decodes_batch;
use rocketmq_protocol::protocol::remoting_command::RemotingCommand;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

use super::body::{compression, unpack};
use super::knock::Doubts;
use super::{Answer, Client, Decoded, Fault, Packed, Request, Seat, Stored};
use crate::config::Config;

/// How long a name server may take to answer.
const ROUTE_MILLIS: u64 = 3_000;
/// The broker that takes messages has this number among those of one name.
const MASTER: u64 = 0;
/// Rights of a topic.
const READ: u32 = 4;
const WRITE: u32 = 2;

/// The library's own threads, once a process and for as long as it runs: starting and stopping
/// them takes longer than any consumer should.
pub(super) struct Engine {
    pub(super) client: Arc<ClientRuntime>,
    _owner: RuntimeOwner,
}

pub(super) fn engine() -> Result<&'static Engine, Error> {
    static ENGINE: OnceLock<Result<Engine, Error>> = OnceLock::new();
    ENGINE.get_or_init(start_engine).as_ref().map_err(Clone::clone)
}

fn start_engine() -> Result<Engine, Error> {
    let failed = |why: String| {
        Error::new(
            ErrorKind::Internal,
            format!("the threads of the RocketMQ client cannot be started: {why}"),
        )
    };
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = RuntimeConfig::for_parallelism("oncemq-rocketmq", parallelism);
    let plan = RuntimeOwner::plan(settings).map_err(|why| failed(why.to_string()))?;
    let owner = plan.build().map_err(|why| failed(why.to_string()))?;
    let context = owner.root_context().component("oncemq");
    // Not its own subscriber of logs: that is the application's.
    let client = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), TelemetryHandle::noop())
        .map_err(|why| failed(why.to_string()))?;
    Ok(Engine { client, _owner: owner })
}

/// The library's settings for a connection of this name.
pub(super) fn client_config(settings: &Config, instance: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_namesrv_addr(settings.name_servers.join(";").into());
    config.set_instance_name(instance.into());
    if settings.tls {
        config.set_use_tls(true);
        config.set_tls_test_mode_enable(false);
        config.set_tls_client_auth_server(true);
        if let Some(file) = &settings.tls_ca {
            config.set_tls_client_trust_cert_path(file);
        }
    }
    config
}

/// What signs requests.
pub(super) fn client_hook(settings: &Config) -> Option<Arc<ClientRpcHook>> {
    settings.login.as_ref().map(|(key, secret)| {
        let hook: Arc<ClientRpcHook> =
            Arc::new(AclClientRPCHook::new(SessionCredentials::with_keys(key.as_str(), secret.as_str())));
        hook
    })
}

/// A connection of the library. Each of its handles does one thing at a time, so there are as
/// many as there are requests under way; they share their connections.
pub(super) struct Real {
    config: ClientConfig,
    hook: Option<Arc<ClientRpcHook>>,
    domain: u64,
    doubts: Doubts,
    /// The name server, if there is one only. Among several the library chooses.
    name_server: Option<String>,
    idle: Mutex<Vec<ClientInstanceHandle>>,
    started: tokio::sync::OnceCell<()>,
    closed: std::sync::atomic::AtomicBool,
}

impl Real {
    pub(super) fn new(settings: &Config) -> Result<Self, Error> {
        static DOMAINS: AtomicU64 = AtomicU64::new(1);
        engine()?;
        #[cfg(feature = "tls")]
        if settings.tls {
            // The client's tree has two of them and the library takes none by itself. It may have
            // been chosen already, and then it is the application's choice.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let domain = DOMAINS.fetch_add(1, Relaxed);
        Ok(Self {
            config: client_config(settings, &format!("oncemq-{}", std::process::id())),
            hook: client_hook(settings),
            domain,
            doubts: Doubts::default(),
            name_server: match settings.name_servers.as_slice() {
                [one] => Some(one.clone()),
                _ => None,
            },
            idle: Mutex::default(),
            started: tokio::sync::OnceCell::new(),
            closed: false.into(),
        })
    }

    /// A handle that nobody uses, given back when the lease is dropped.
    async fn lease(&self) -> Result<Lease<'_>, Fault> {
        if self.closed.load(Relaxed) {
            return Err(Fault::NotSent("the connection is closed".to_owned()));
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let handle = match idle {
            Some(handle) => handle,
            None => self.handle()?,
        };
        let lease = Lease { real: self, handle: Some(handle) };
        self.started.get_or_try_init(|| async { lease.get()?.start().await.map_err(fault) }).await?;
        Ok(lease)
    }

    fn handle(&self) -> Result<ClientInstanceHandle, Fault> {
        let engine = engine().map_err(|why| Fault::NotSent(why.to_string()))?;
        ClientInstanceHandle::get_or_create(
            &engine.client,
            self.domain,
            self.config.clone(),
            self.hook.clone(),
        )
        .map_err(fault)
    }
}

impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Real").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let handles = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        if handles.is_empty() {
            return;
        }
        if let Ok(engine) = engine() {
            let group = engine.client.service_context().task_group().clone();
            // Refused only when the process ends, and then nobody misses it.
            let _ = group.spawn_service("oncemq-close", release(handles));
        }
    }
}

async fn release(handles: Vec<ClientInstanceHandle>) {
    for handle in handles {
        handle.shutdown_owned().await;
    }
}

struct Lease<'a> {
    real: &'a Real,
    handle: Option<ClientInstanceHandle>,
}

impl Lease<'_> {
    fn get(&self) -> Result<&ClientInstanceHandle, Fault> {
        self.handle.as_ref().ok_or_else(|| Fault::NotSent("the connection is closed".to_owned()))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.real.idle.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        }
    }
}

#[async_trait]
impl Client for Real {
    async fn route(&self, topic: &str) -> Result<Option<Vec<Seat>>, Fault> {
        let lease = self.lease().await?;
        let asked = Box::pin(async { lease.get()?.topic_route(topic, ROUTE_MILLIS).await.map_err(fault) });
        let Some(route) = self.name_server(asked).await? else { return Ok(None) };
        let address = |name: &CheetahString| {
            let broker = route.broker_datas.iter().find(|broker| broker.broker_name() == name)?;
            Some(broker.broker_addrs().get(&MASTER)?.as_str().into())
        };
        let seat = |queues: &rocketmq_protocol::protocol::route::route_data_view::QueueData| {
            let count =
                |right, count| if queues.perm & right == 0 { 0 } else { i32::try_from(count).unwrap_or(0) };
            Some(Seat {
                broker: queues.broker_name.as_str().into(),
                address: address(&queues.broker_name)?,
                reads: count(READ, queues.read_queue_nums),
                writes: count(WRITE, queues.write_queue_nums),
            })
        };
        let mut seats: Vec<Seat> = route.queue_datas.iter().filter_map(seat).collect();
        seats.sort_by(|a, b| a.broker.cmp(&b.broker));
        Ok(Some(seats))
    }

    async fn masters(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, Fault> {
        let lease = self.lease().await?;
        let asked = Box::pin(async { lease.get()?.broker_cluster_info(ROUTE_MILLIS).await.map_err(fault) });
        let found = self.name_server(asked).await?;
        let Some(brokers) = found.broker_addr_table else { return Ok(Vec::new()) };
        let mut masters: Vec<(Arc<str>, Arc<str>)> = brokers
            .iter()
            .filter_map(|(name, broker)| {
                Some((name.as_str().into(), broker.broker_addrs().get(&MASTER)?.as_str().into()))
            })
            .collect();
        masters.sort();
        Ok(masters)
    }

    async fn ask(&self, address: &str, request: Request, limit: Duration) -> Result<Answer, Fault> {
        self.doubts.knock(address).await?;
        let asked = self.request(address, request, limit).await;
        self.doubts.note(address, &asked);
        asked
    }

    fn stored(&self, mut body: Bytes) -> Decoded {
        let count = frames(&body);
        // What the library cannot uncompress ends its list, and what is behind it would be lost.
        let messages: Vec<_> = decodes_batch(&mut body, true, false).into_iter().map(stored).collect();
        Decoded { whole: messages.len() == count, messages }
    }

    fn new_id(&self) -> String {
        MessageClientIDSetter::create_uniq_id().to_string()
    }

    async fn close(&self) {
        self.closed.store(true, Relaxed);
        let handles = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        release(handles).await;
    }
}

impl Real {
    async fn name_server<T>(&self, asked: BoxFuture<'_, Result<T, Fault>>) -> Result<T, Fault> {
        let Some(address) = &self.name_server else { return asked.await };
        self.doubts.knock(address).await?;
        let found = asked.await;
        self.doubts.note(address, &found);
        found
    }

    async fn request(&self, address: &str, request: Request, limit: Duration) -> Result<Answer, Fault> {
        let fields: HashMap<CheetahString, CheetahString> =
            request.fields.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let mut command = RemotingCommand::create_remoting_command(request.code).set_ext_fields(fields);
        if let Some(body) = request.body {
            command = command.set_body(body);
        }
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let lease = self.lease().await?;
        let mut answer =
            lease.get()?.invoke_remoting(&address.into(), command, millis).await.map_err(fault)?;
        drop(lease);
        let fields = answer
            .ext_fields()
            .map(|fields| fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect());
        Ok(Answer {
            code: answer.code(),
            remark: answer.remark().map(ToString::to_string).unwrap_or_default(),
            fields: fields.unwrap_or_default(),
            body: answer.take_body(),
        })
    }
}

/// How many messages there are, each with its length before it. A rest counts as one.
fn frames(mut body: &[u8]) -> usize {
    let mut count = 0;
    while !body.is_empty() {
        count += 1;
        let size = body.first_chunk().and_then(|size| usize::try_from(i32::from_be_bytes(*size)).ok());
        match size.filter(|size| *size > 0).and_then(|size| body.get(size..)) {
            Some(rest) => body = rest,
            None => break,
        }
    }
    count
}

pub(super) fn stored(message: MessageExt) -> Stored {
    let raw = message.body().unwrap_or_default();
    let packed = compression(message.sys_flag()).map(|flag| Packed { flag, body: raw.clone() });
    let (body, unreadable) = match packed.as_ref().map(|packed| unpack(packed.flag, &packed.body)) {
        None => (raw, None),
        Some(Ok(body)) => (body, None),
        Some(Err(why)) => (raw, Some(why)),
    };
    let properties =
        message.properties().iter().map(|(name, value)| (name.as_str().into(), value.to_string())).collect();
    Stored {
        offset: message.queue_offset(),
        born: message.born_timestamp(),
        reconsumed: u32::try_from(message.reconsume_times()).unwrap_or(0),
        position: message.commit_log_offset(),
        place: message.msg_id().to_string(),
        body,
        packed,
        unreadable,
        properties,
    }
}

/// The library's errors have codes instead of texts; what the system said is below them. A
/// connection that breaks has the same code before and after a request went out, so only one
/// that was never made is sure to have carried nothing.
pub(super) fn fault(error: ClientError) -> Fault {
    match error.source_ref::<std::io::Error>() {
        Some(system) if system.kind() == std::io::ErrorKind::ConnectionRefused => {
            Fault::NotSent(system.to_string())
        }
        Some(system) => Fault::NoAnswer(system.to_string()),
        None => Fault::NoAnswer(error.to_string()),
    }
}
