//! The questions of an administrator: plain commands that change nothing that a lock depends on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::Backend;
use super::connection::Broken;
use super::dial::is_of_replica;
use super::node::Node;
use super::refusal::code;
use super::resp::WireRequest;
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
    /// Sends these commands, one directly behind the other, and returns the server's answer to each.
    ///
    /// A command whose connection was cut is sent again, so it must be one that may run twice.
    pub(crate) async fn inquire(
        &self,
        node: &Node,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Told>, Error> {
        try_join_all(commands.iter().map(|words| self.tell(node, words, false))).await
    }

    /// Does the same for commands that read locks. Returns `Err` if the server is a replica, whose answers may be out
    /// of date.
    ///
    /// Asks for the role last. So a server that says that it is a primary was one when it answered, or has been
    /// promoted since.
    pub(crate) async fn look(
        &self,
        node: &Node,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Told>, Error> {
        let mut told = self
            .inquire(node, &[commands, &[vec!["ROLE"]]].concat())
            .await?;
        match is_of_replica(told.pop().as_ref()) {
            true => Err(node.as_replica("it says so by ROLE")),
            false => Ok(told),
        }
    }

    /// Does the same for commands that are all about one key, on the server that has the key.
    pub(crate) async fn look_at(
        &self,
        key: &str,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Told>, Error> {
        match self.is_clustered() {
            // In a cluster, a replica redirects every question about a key.
            true => self.inquire_about(key, commands).await,
            false => self.look(&*self.home_of(key)?, commands).await,
        }
    }

    /// Returns the servers with a slot, or an error if none is known so far.
    pub(crate) fn known_nodes(&self) -> Result<Vec<Arc<Node>>, Error> {
        let nodes = self.nodes();
        match nodes.is_empty() {
            true => Err(self.homeless("any key")),
            false => Ok(nodes),
        }
    }

    /// Sends these commands, all about `key`, to the server that has it. Each command follows redirections by itself:
    /// while a slot is being moved, each of the two servers has some of its keys.
    pub(crate) async fn inquire_about(
        &self,
        key: &str,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Told>, Error> {
        let home = self.home_of(key)?;
        try_join_all(commands.iter().map(|words| self.follow(&home, words))).await
    }

    async fn follow(&self, home: &Arc<Node>, words: &[&str]) -> Result<Told, Error> {
        let mut told = self.tell(home, words, false).await?;
        let mut node = home.clone();
        for _ in 0..REDIRECTIONS {
            let Some((next, asking)) = self.redirected(&node, &told) else {
                break;
            };
            node = next;
            told = self.tell(&node, words, asking).await?;
        }
        Ok(told)
    }

    /// Returns the server that an answer redirects to, and whether that server answers only after `ASKING`.
    fn redirected(&self, node: &Node, told: &Told) -> Option<(Arc<Node>, bool)> {
        let (cluster, refusal) = (self.cluster()?, told.as_ref().err()?);
        match code(refusal) {
            "MOVED" => Some((cluster.learn(&slots::redirect(refusal)?, node), false)),
            "ASK" => Some((cluster.at(&slots::redirect(refusal)?, node), true)),
            _ => None,
        }
    }

    async fn tell(&self, node: &Node, words: &[&str], asking: bool) -> Result<Told, Error> {
        let started = BootInstant::now();
        let end = started.plus(self.timeout);
        let mut is_repeated = false;
        loop {
            let left = BootInstant::now().until(end);
            let request = match asking {
                // Both go in one piece: a command between them would use up the permission.
                true => WireRequest::of(&["ASKING"]).then(words),
                false => WireRequest::of(words),
            };
            let broken = match node.commands.ask(request, left).await {
                Ok(told) => {
                    node.spoke();
                    return Ok(told);
                }
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

    /// Returns the command that asks for the number of subscribers to a channel.
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

impl Node {
    /// Returns the number of the present connection for commands, or that of the first one if there has been none.
    ///
    /// If it is the same before a command and after the answer, that connection gave the answer.
    pub(crate) fn epoch(&self) -> u64 {
        self.commands.epoch().max(1)
    }
}
