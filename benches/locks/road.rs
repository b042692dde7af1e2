//! A server at a given distance, and the sections of many tasks on it, next to the round trips of one task.

use redlatch::Client;
use redlatch_testkit::Server;

use crate::Failure;
use crate::alternation::Alternation;
use crate::crowd::Crowd;
use crate::detour::Detour;
use crate::effort::Effort;
use crate::floor::{Bare, Floor};
use crate::report::{Figure, Line, Target, rate};
use crate::section::Section;

pub(crate) struct Road {
    pub(crate) client: Client,
    bare: Bare,
    _floor: Floor,
    _detour: Option<Detour>,
    _server: Server,
}

/// A crowd's sections per second, and the seconds of a round trip.
pub(crate) struct Sections(Alternation);

impl Road {
    /// Starts a server and connects to it: with `detour`, through a proxy that adds 1 ms to each round trip.
    pub(crate) async fn open(detour: bool) -> Result<Self, Failure> {
        let server = Server::start();
        let detour = match detour {
            true => Some(Detour::open([server.port()]).await?),
            false => None,
        };
        let url = match &detour {
            Some(detour) => detour.urls[0].clone(),
            None => server.url(),
        };
        let floor = Floor::of_fred(&url).await?;
        Ok(Self {
            client: Client::connect(&url).await?,
            bare: floor.section("bench:bottom!", 1).await?,
            _floor: floor,
            _detour: detour,
            _server: server,
        })
    }

    /// Measures blocks of a crowd in turns with blocks of one task's bare EVALSHAs.
    pub(crate) async fn measure(
        &self,
        crowd: &[impl Section + Clone],
        pairs: usize,
        effort: &Effort,
    ) -> Result<Sections, Failure> {
        let measured = Alternation::run(
            pairs,
            async || Ok(Crowd::run(crowd.to_vec(), effort.block).await?.per_second()),
            async || Ok(self.bare.round_trip(effort.block).await?.as_secs_f64()),
        );
        Ok(Sections(measured.await?))
    }
}

impl Sections {
    /// Returns the line that shows how many sections there are in a round trip.
    pub(crate) fn line(&self, label: &str, key: &str, least: f64) -> Line {
        let Self(measured) = self;
        Line {
            shape: format!("{label}: sections"),
            product: rate(measured.median(|sections, _| sections)),
            floor: format!(
                "{} round trips",
                rate(1.0 / measured.median(|_, trip| trip))
            ),
            figure: Some(Figure::new(
                &format!("{key}_sections_per_rtt"),
                measured.median(|sections, trip| sections * trip),
                Target::AtLeast(least),
            )),
        }
    }
}
