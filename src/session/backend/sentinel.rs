//! Follows the sentinels of a service, and takes its primary from the newest statement of any of them.
//!
//! # Invariants
//!
//! 1. Of two statements, the one with the higher configuration epoch is newer, whichever sentinel makes it and whenever
//!    it arrives. So a sentinel that is behind never leads back, even if those that are ahead are silent. Only a
//!    majority of all known sentinels that agree at the same time leads back: the service is then monitored from
//!    scratch.
//! 2. The client listens to each sentinel. It also asks each every second as long as one is silent, two disagree, or
//!    the primary cannot be reached.
//! 3. Sentinels have logins of their own. They are never sent those of the servers.
//!
//! The connection to a former primary is dropped at the first statement that names another one. A former primary went
//! on to take locks and releases for 11 s, until the sentinels made it a replica.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use super::dial::Dialer;
use super::link::Link;
use super::resp::{Heard, Said, Version, WireRequest};
use super::statement::{Report, View, Word, decisive};
use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;

/// How often a sentinel is asked while not all is well, and how often the client tries to reach a silent one.
const EACH: Duration = Duration::from_secs(1);
/// How often a sentinel is asked while all is well, in case it fell silent without notice.
const CALM: Duration = Duration::from_secs(10);
/// How long the statement of a silent sentinel counts.
const KEPT: Duration = Duration::from_secs(10);
/// How long the first statement waits for those of the others.
const GRACE: Duration = Duration::from_millis(200);
/// A sentinel's channels about a failover: the new primary has taken over; the failover is complete.
const CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The sentinels of one service.
///
/// Made once for each client and shared by its dialers, so that all its connections lead to the same primary.
pub(super) struct Sentinels {
    circle: Arc<Circle>,
    /// The task that follows them.
    followed: AbortOnDropHandle<()>,
}

/// The state that the tasks share which follow the sentinels.
struct Circle {
    /// How to reach a sentinel. It follows none itself.
    dialer: Dialer,
    /// The name under which the sentinels know the servers.
    service: String,
    /// The configured sentinels. Others are discovered through them.
    configured: Vec<Server>,
    /// The last report of each sentinel. The mutex stays locked while the view is updated.
    reports: Mutex<HashMap<Server, Report>>,
    /// Signals that the set of known sentinels has changed.
    met: Notify,
    /// The conclusion from all reports. Watched by connections, and by callers that need a primary.
    view: watch::Sender<View>,
}

impl Sentinels {
    /// Starts to follow the sentinels on `runtime`, until this is closed or dropped. The dialer reaches sentinels in
    /// the same way as servers.
    pub(super) fn follow(
        dialer: Dialer,
        configured: Vec<Server>,
        service: String,
        runtime: &Handle,
    ) -> Self {
        let circle = Arc::new(Circle {
            dialer,
            service,
            configured,
            reports: Mutex::default(),
            met: Notify::new(),
            view: watch::Sender::default(),
        });
        let followed = AbortOnDropHandle::new(runtime.spawn(circle.clone().attend_all()));
        Self { circle, followed }
    }

    /// Waits until a primary is known, and returns it. Returns `Err` if none is known after the time that a sentinel
    /// may take to answer.
    ///
    /// After the first answer, waits for up to [`GRACE`], so that other sentinels can correct it.
    pub(super) async fn primary(&self) -> Result<Server, Error> {
        let mut view = self.circle.view.subscribe();
        let known = |view: &View| view.primary.is_some() || view.is_complete;
        timeout(self.circle.dialer.patience * 2, view.wait_for(known))
            .await
            .ok();
        // The first sentinel to answer may be behind the others.
        timeout(GRACE, view.wait_for(|view| view.is_complete))
            .await
            .ok();
        let named = view.borrow().primary.clone();
        named.ok_or_else(|| self.circle.failure())
    }

    /// Returns the primary that is known now.
    pub(super) fn named(&self) -> Option<Server> {
        self.circle.view.borrow().primary.clone()
    }

    /// Waits until the primary is a different server than the one at `place`.
    ///
    /// Ends connections to a former primary, and attempts to reach it.
    pub(super) async fn named_other_than(&self, place: Option<&str>) {
        let mut view = self.circle.view.subscribe();
        let is_other = |view: &View| {
            let named = view.primary.as_ref().map(ToString::to_string);
            named.is_some() && named.as_deref() != place
        };
        // The sender lives as long as `self`, so the wait cannot fail.
        view.wait_for(is_other).await.ok();
    }

    /// Records whether the primary could be reached.
    ///
    /// While it could not be, the sentinels are asked every second.
    pub(super) fn tried(&self, reached: bool) {
        self.circle.view.send_if_modified(|view| {
            let is_news = view.is_unreachable == reached;
            view.is_unreachable = !reached;
            is_news
        });
    }

    /// Stops following the sentinels.
    pub(super) fn close(&self) {
        self.followed.abort();
    }
}

impl Circle {
    /// Follows all known sentinels, each in a task of its own, until the future is dropped.
    ///
    /// Drops a sentinel and its task once nobody names it.
    async fn attend_all(self: Arc<Self>) {
        let mut attended: HashMap<Server, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            let known = self.known(&self.lock());
            attended.retain(|sentinel, _| known.contains(sentinel));
            for sentinel in known {
                attended.entry(sentinel.clone()).or_insert_with(|| {
                    AbortOnDropHandle::new(tokio::spawn(self.clone().attend(sentinel)))
                });
            }
            self.met.notified().await;
        }
    }

    /// Returns the configured sentinels and those that others name. A configured sentinel whose id is known is not
    /// counted again under another address.
    fn known(&self, reports: &HashMap<Server, Report>) -> Vec<Server> {
        let word = |sentinel: &Server| reports.get(sentinel)?.word.as_ref();
        let met: BTreeSet<&str> = self
            .configured
            .iter()
            .filter_map(|sentinel| Some(word(sentinel)?.id.as_str()))
            .collect();
        let words = reports.values().filter_map(|report| report.word.as_ref());
        let told: BTreeSet<&Server> = words
            .flat_map(|word| &word.others)
            .filter(|(id, sentinel)| {
                !met.contains(id.as_str()) && !self.configured.contains(sentinel)
            })
            .map(|(_, sentinel)| sentinel)
            .collect();
        self.configured.iter().chain(told).cloned().collect()
    }

    /// Listens to a sentinel and asks it. Never returns.
    ///
    /// After a failure, reconnects in a second, with some jitter so that clients do not come all at once.
    async fn attend(self: Arc<Self>, sentinel: Server) {
        loop {
            let Err(error) = self.converse(&sentinel).await;
            debug!(%sentinel, %error, "the sentinel is silent");
            self.note(&sentinel, Err(error));
            sleep(EACH + EACH.mul_f64(fastrand::f64() / 8.0)).await;
        }
    }

    /// Connects to a sentinel, listens to it and asks it, until that fails.
    ///
    /// A message only leads to a question: the answers count, as they have an epoch.
    async fn converse(&self, sentinel: &Server) -> Result<Infallible, Error> {
        let identity = self.dialer.identify_to_sentinel(sentinel).await?;
        let mut link = self.dialer.open(sentinel).await?;
        let entered = self.dialer.log_in(&mut link, &identity).await;
        entered.map_err(|error| {
            let text = format!(
                "the sentinel {sentinel} refused; it has its own login: set Config::sentinel_password, or \
                 ?sentinelPassword=.. in the URL: {error}"
            );
            Error::new(ErrorKind::Backend, text).caused_by(error)
        })?;
        // In RESP2 nothing can be asked on a connection that listens to channels.
        let listens = link.version == Version::Resp3;
        if listens {
            let words = [&["SUBSCRIBE"], &CHANNELS[..]].concat();
            let subscribed = link.send(&[WireRequest::of(&words)]).await;
            subscribed.map_err(|error| cut(sentinel, error))?;
        }
        loop {
            let asked = BootInstant::now();
            let answers = timeout(self.dialer.patience, self.ask(&mut link)).await;
            let (answers, mut is_late) = match answers {
                Ok(answers) => answers.map_err(|error| cut(sentinel, error))?,
                Err(late) => return Err(cut(sentinel, late.into())),
            };
            self.note(sentinel, Ok(self.read(sentinel, answers)?));
            // Sleeps until a message or their age may have made the answers stale.
            while !is_late {
                tokio::select! {
                    heard = link.next() => {
                        is_late = is_message(&heard.map_err(|error| cut(sentinel, error))?);
                    }
                    () = sleep(EACH) => {
                        let is_calm = listens && self.view.borrow().is_calm();
                        is_late = !is_calm || asked.until(BootInstant::now()) >= CALM;
                    }
                }
            }
        }
    }

    /// Asks for the primary, the epoch, the other sentinels, and the sentinel's id. Also returns whether a message came
    /// in the meantime, in which case the answers may be stale.
    ///
    /// The questions go together, in one round trip. Their answers need not be from one instant.
    async fn ask(&self, link: &mut Link) -> io::Result<(Vec<Said>, bool)> {
        let service = &self.service;
        let requests = [
            // During a failover, this answer changes first.
            WireRequest::of(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]),
            WireRequest::of(&["SENTINEL", "MASTER", service]),
            WireRequest::of(&["SENTINEL", "SENTINELS", service]),
            WireRequest::of(&["SENTINEL", "MYID"]),
        ];
        link.send(&requests).await?;
        let (mut answers, mut is_late) = (Vec::new(), false);
        while answers.len() < requests.len() {
            match link.next().await? {
                Heard::Reply(said) => answers.push(said),
                heard => is_late |= is_message(&heard),
            }
        }
        Ok((answers, is_late))
    }

    /// Parses a sentinel's answers. Returns `Err` if they name no primary.
    ///
    /// A part that the sentinel refuses stays empty. An empty epoch counts as old, and an empty list as no sentinels.
    fn read(&self, sentinel: &Server, answers: Vec<Said>) -> Result<Word, Error> {
        let refused = |text: &str| {
            let service = &self.service;
            let text =
                format!("the sentinel {sentinel} does not name the primary of {service:?}: {text}");
            Error::new(ErrorKind::Backend, text)
        };
        let mut answers = answers.into_iter();
        let primary = match answers.next() {
            Some(Ok(Reply::List(parts))) => match &parts[..] {
                [Reply::Text(host), Reply::Text(port)] => {
                    let port = port
                        .parse()
                        .map_err(|_| refused("its port is not a number"))?;
                    sentinel.named(host, port)
                }
                _ => return Err(refused("its answer is not an address")),
            },
            Some(Ok(_)) | None => return Err(refused("it knows no such service")),
            Some(Err(text)) if text.starts_with("ERR unknown command") => {
                return Err(refused(&format!("it is not a sentinel: {text}")));
            }
            Some(Err(text)) => return Err(refused(&text)),
        };
        // The address of the primary is enough: the rest is left empty if the sentinel refuses it.
        let mut rest = answers.map(|said| said.unwrap_or(Reply::Nil));
        let [row, rows, id] = [(); 3].map(|()| rest.next().unwrap_or(Reply::Nil));
        let other = |row: &Reply| {
            let (host, port) = (row.field("ip")?, row.field("port")?.parse().ok()?);
            let other = sentinel.named(host, port);
            Some((row.field("runid")?.to_owned(), other))
        };
        let others = match &rows {
            Reply::List(rows) => rows.iter().filter_map(other).collect(),
            _ => Vec::new(),
        };
        let epoch = row
            .field("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        Ok(Word {
            primary,
            epoch: epoch.unwrap_or_default(),
            id: match id {
                Reply::Text(id) => id,
                _ => String::new(),
            },
            others,
        })
    }

    /// Records what a sentinel has said, or why it is silent.
    ///
    /// After a silence of [`KEPT`], the sentinel's statement no longer counts.
    fn note(&self, sentinel: &Server, said: Result<Word, Error>) {
        let mut reports = self.lock();
        let before = self.known(&reports);
        let report = reports.entry(sentinel.clone()).or_default();
        match said {
            Ok(word) => {
                report.word = Some(word);
                report.silence = None;
            }
            Err(error) => {
                let (since, last) = report
                    .silence
                    .get_or_insert_with(|| (BootInstant::now(), error.clone()));
                *last = error;
                report
                    .word
                    .take_if(|_| since.until(BootInstant::now()) >= KEPT);
            }
        }
        let known = self.known(&reports);
        if known != before {
            self.met.notify_one();
        }
        reports.retain(|sentinel, _| known.contains(sentinel));
        self.look(&known, &reports);
    }

    /// Updates the view from all reports.
    ///
    /// Called with the reports locked, so that views come in the order of the reports.
    fn look(&self, known: &[Server], reports: &HashMap<Server, Report>) {
        self.view.send_if_modified(|view| {
            let word = decisive(reports.values(), known.len(), view);
            let is_news = word.is_some_and(|word| view.follow(word));
            if is_news {
                let primary = &view.primary;
                info!(service = %self.service, ?primary, "the sentinels name the primary");
            }
            let is_complete = view.is_complete;
            view.is_complete |= self
                .configured
                .iter()
                .all(|sentinel| reports.contains_key(sentinel));
            view.is_united = known.iter().all(|sentinel| {
                let report = reports.get(sentinel);
                report.is_some_and(|report| {
                    let named = report.word.as_ref().map(|word| &word.primary);
                    report.silence.is_none() && named == view.primary.as_ref()
                })
            });
            // Nobody waits for `is_united` alone to change.
            is_news || view.is_complete != is_complete
        });
    }

    /// Returns why no sentinel names a primary.
    ///
    /// The reason is that of the first configured sentinel that is silent.
    fn failure(&self) -> Error {
        let reports = self.lock();
        let mut reports = self.configured.iter().filter_map(|it| reports.get(it));
        let failure = reports.find_map(|report| Some(report.silence.as_ref()?.1.clone()));
        let text = "no sentinel has answered so far";
        failure.unwrap_or_else(|| Error::new(ErrorKind::Backend, text))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Server, Report>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this is a message on a channel, and not the confirmation of a subscription. The client listens only in
/// RESP3, where both are pushes.
fn is_message(heard: &Heard) -> bool {
    let Heard::Push(parts) = heard else {
        return false;
    };
    matches!(parts.first(), Some(Reply::Text(kind)) if kind == "message")
}

/// Builds the error of a sentinel whose connection failed.
fn cut(sentinel: &Server, error: io::Error) -> Error {
    let text = format!("the sentinel {sentinel} did not answer: {error}");
    Error::new(ErrorKind::Backend, text).caused_by(error)
}
