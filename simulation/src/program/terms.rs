//! What tasks do as leaders, besides what they do with any lock.

use std::time::Duration;

use redlatch::Owner;
use redlatch::leader::Term;
use tokio::time::{sleep, timeout};

use super::Task;
use super::body::Body;
use crate::judge::{Belief, judge};
use crate::locks::election;
use crate::plan::Section;

impl Task<'_> {
    /// Leads until a term lasts for as long as the work.
    pub(super) async fn lead(&self, section: &Section) {
        let (id, name, work) = (self.id(), section.names[0], section.work);
        let election = election(&self.process.plan, &self.process.clients, name);
        let led = election.lead(async move |term: &Term| {
            let belief = Belief::Body(Some(term.token().get()));
            let hold = judge(|judge| judge.granted(id, name, false, &Owner::unique(), belief));
            let _body = Body::new(hold, None);
            sleep(Duration::from_millis(work)).await;
        });
        let what = format!("lead {}", election.name());
        self.call(
            what,
            None,
            &section.names,
            section.care.polled(),
            led,
            |()| "led",
        )
        .await;
        // The word that the last term is over may be on its way.
        judge(|judge| judge.owed(name));
    }

    pub(super) async fn look_at_leader(&self, at: usize) {
        let plan = &self.process.plan;
        let election = election(plan, &self.process.clients, at);
        let limit = Some(2 * plan.command_timeout);
        let what = format!("look at {}", election.name());
        self.just(what, limit, election.current(), |_| "done").await;
        let mut watch = election.watch();
        let changes = async {
            let changes = async {
                watch.changed().await?;
                watch.changed().await
            };
            timeout(Duration::from_millis(300), changes)
                .await
                .ok()
                .transpose()
        };
        let what = format!("watch {}", election.name());
        let told = |last: &Option<_>| {
            if last.is_some() {
                "changed"
            } else {
                "the same"
            }
        };
        self.just(what, limit, changes, told).await;
    }
}
