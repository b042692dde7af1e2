//! The clients that send the commands of a floor to the server.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface, Resp3Frame};
use fred::types::config::{
    Config, ConnectionConfig, Options, PerformanceConfig, ReconnectPolicy, TcpConfig,
};
use fred::types::{ClusterHash, CustomCommand, Message, RespVersion, Value};
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;

use crate::Failure;
use crate::pipe::Pipe;

/// The longest that a command of fred may take: the product's default.
const LIMIT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) enum Carrier {
    Fred(Fred),
    Pipe(Pipe),
}

/// A client that many use for locks, with the options that such a user needs.
#[derive(Clone)]
pub(crate) struct Fred {
    client: Client,
    _connection: Arc<AbortOnDropHandle<Result<(), fred::error::Error>>>,
}

impl Carrier {
    /// Sends a command that begins with this word, and returns the reply.
    pub(crate) async fn ask(
        &self,
        command: &'static str,
        words: Vec<Value>,
    ) -> Result<Resp3Frame, Failure> {
        match self {
            Self::Fred(fred) => fred.ask(command, words).await,
            Self::Pipe(pipe) => pipe.ask(command, &words).await,
        }
    }
}

impl Fred {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let mut config = Config::from_url(url)?;
        config.version = RespVersion::RESP3;
        config.fail_fast = true;
        let connection = ConnectionConfig {
            connection_timeout: LIMIT * 2,
            internal_command_timeout: LIMIT,
            max_command_attempts: 1,
            tcp: TcpConfig {
                nodelay: Some(true),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        };
        let performance = PerformanceConfig {
            default_command_timeout: LIMIT,
            broadcast_channel_capacity: 4096,
            ..PerformanceConfig::default()
        };
        let mut policy = ReconnectPolicy::new_exponential(0, 50, 1_000, 2);
        policy.set_jitter(50);
        let client = Client::new(config, Some(performance), Some(connection), Some(policy));
        let connection = AbortOnDropHandle::new(client.connect());
        client.wait_for_connect().await?;
        Ok(Self {
            client,
            _connection: Arc::new(connection),
        })
    }

    /// Subscribes to a channel, and returns its messages from now on.
    pub(crate) async fn listen(
        &self,
        channel: &str,
    ) -> Result<broadcast::Receiver<Message>, Failure> {
        let messages = self.client.message_rx();
        self.client.subscribe(channel).await?;
        Ok(messages)
    }

    async fn ask(&self, command: &'static str, words: Vec<Value>) -> Result<Resp3Frame, Failure> {
        let options = Options {
            max_attempts: Some(1),
            timeout: Some(LIMIT),
            ..Options::default()
        };
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        let client = self.client.with_options(&options);
        Ok(client.custom_raw(command, words).await?)
    }
}
