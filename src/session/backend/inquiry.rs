//! Questions of an administrator: commands that are no script, and change nothing that a lock depends on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::Backend;
use super::connection::Broken;
use super::node::Node;
use super::refusal::code;
use super::resp::Request;
use super::run::RESEND_PAUSE;
use super::slots;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::reply::Reply;

/// How many times a question follows a slot to another server.
const REDIRECTIONS: usize = 5;

/// A server's answer, or the words in which it refuses.
pub(crate) type Told = Result<Reply, String>;

impl Backend {
    /// Sends these commands, one directly behind the other, and returns what the server says to each.
    ///
    /// A command whose connection was cut is sent again, so it must be one that may run twice.
    pub(crate) async fn inquire(
        &self,
        node: &Node,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Told>, Error> {
        try_join_all(commands.iter().map(|words| self.tell(node, words))).await
    }

    /// Sends these commands to the server that has the key, which all of them are about.
    pub(crate) async fn inquire_about(
        &self,
        key: &str,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Told>, Error> {
        let mut node = self.home_of(key)?;
        let mut told = self.inquire(&node, commands).await?;
        for _ in 0..REDIRECTIONS {
            let Some(next) = self.redirected(&node, &told) else {
                break;
            };
            node = next;
            told = self.inquire(&node, commands).await?;
        }
        Ok(told)
    }

    /// Returns the server that a slot has moved to, if one of the answers says so.
    fn redirected(&self, node: &Node, told: &[Told]) -> Option<Arc<Node>> {
        let cluster = self.cluster()?;
        let mut refusals = told.iter().filter_map(|told| told.as_ref().err());
        let moved = refusals.find(|text| code(text) == "MOVED")?;
        Some(cluster.learn(&slots::redirect(moved)?, node))
    }

    async fn tell(&self, node: &Node, words: &[&str]) -> Result<Told, Error> {
        let started = BootInstant::now();
        let end = started.plus(self.timeout);
        let mut is_repeated = false;
        loop {
            let left = BootInstant::now().until(end);
            let broken = match node.commands.ask(Request::of(words), left).await {
                Ok(told) => return Ok(told),
                Err(broken) => broken,
            };
            let may_pass = matches!(broken, Broken::Cut(_) | Broken::Unsent(_));
            if !may_pass || BootInstant::now().plus(RESEND_PAUSE) >= end {
                return Err(node.failed(started, self.timeout, broken, is_repeated));
            }
            is_repeated |= matches!(broken, Broken::Cut(_));
            sleep(RESEND_PAUSE).await;
        }
    }

    /// Returns the command that publishes releases.
    pub(crate) fn publishes_by(&self) -> &'static str {
        self.channels().publish()
    }

    /// Returns how the number of subscribers to a channel is asked for.
    pub(crate) fn counts_by(&self) -> &'static str {
        match self.publishes_by() {
            "SPUBLISH" => "SHARDNUMSUB",
            _ => "NUMSUB",
        }
    }

    /// Returns how long one command may take.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout
    }
}
