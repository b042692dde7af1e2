//! The table and the picture with which `BENCHMARKS.md` begins.

use std::fmt::Write;
use std::time::Duration;

use super::contestant::Contestant;
use super::entrant::{Entrant, Figures};
use super::{COUNTED_WAIT, TASKS};
use crate::plot::Plot;
use crate::waits::Waits;

const TITLE: &str = "Sections a second, and the time to hand a lock over";
const WIDTH: f64 = 760.0;
/// Where the bars begin, after the names.
const LEFT: f64 = 180.0;
/// The longest bar: the text of its value needs room behind it.
const LONGEST: f64 = 460.0;
const TOP: f64 = 58.0;
const ROW: f64 = 30.0;
const BAR: f64 = 20.0;
/// From the head of one panel to that of the next, without the rows.
const HEAD: f64 = 44.0;
const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 15px; font-weight: 600 }
  .head { font-weight: 600 }
  .paper { fill: #ffffff }
  .bar { fill: #8c959f } .own { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .paper { fill: #0d1117 }
    .bar { fill: #6e7681 } .own { fill: #58a6ff }
  }
";

/// What a newcomer should see of all contestants.
pub(crate) struct Comparison {
    rows: Vec<(Contestant, Option<Figures>)>,
    pings: Waits,
}

/// One half of the picture: a bar for each contestant, on a logarithmic scale.
struct Panel<'a> {
    head: &'a str,
    /// The decades from the beginning of a bar to the end of the longest possible one.
    decades: (f64, f64),
    value: fn(&Figures) -> f64,
    label: fn(&Figures) -> String,
}

const PANELS: [Panel<'static>; 2] = [
    Panel {
        head: "64 tasks want one lock: sections a second (longer is better)",
        decades: (2.0, 5.5),
        value: |figures| figures.sections_a_second,
        label: |figures| grouped(figures.sections_a_second),
    },
    Panel {
        head: "From unlock in one process to lock in another, median (shorter is better)",
        decades: (-1.5, 2.5),
        value: |figures| figures.hand_over.median().as_secs_f64() * 1e3,
        label: |figures| readable(figures.hand_over.median()),
    },
];

impl Comparison {
    pub(super) fn new(entrants: &[Entrant], pings: Waits) -> Self {
        let figures = |contestant| {
            let mut entrants = entrants.iter();
            let entrant = entrants.find(|entrant| entrant.contestant == contestant);
            (contestant, entrant.map(Entrant::figures))
        };
        Self {
            rows: Contestant::ALL.map(figures).into(),
            pings,
        }
    }

    /// Returns the table, with what its columns mean.
    pub(crate) fn table(&self) -> String {
        let mut measured = self.rows.iter().filter_map(|(_, figures)| figures.as_ref());
        let span = measured
            .next()
            .map(|figures| figures.span)
            .unwrap_or_default();
        let mut text = format!(
            "| | lock and unlock, nobody waits | {TASKS} tasks want one lock: sections a second | tasks served in \
             {span:?} | longest wait | commands a section | hand-over to another process | commands in a wait of {COUNTED_WAIT:?} |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|\n"
        );
        for (contestant, figures) in &self.rows {
            let cells = match figures {
                Some(figures) => figures.cells(),
                None => "not measured | | | | | |".to_owned(),
            };
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(text, "| {contestant} | {cells} |");
        }
        let _ = writeln!(
            text,
            "\nTimes are medians; a hand-over also has its p99. Two bare PINGs take {}. A section is a critical section: a \
             task acquires the lock and releases it at once. If one task keeps the lock to itself, it passes many \
             sections while the others wait, so read the sections a second together with the longest wait. The \
             hand-over is the time from the call of unlock to the return of lock, after the lock was held for 5 ms. \
             [All figures](benches/figures.md#next-to-other-locks) has more of each.",
            readable(self.pings.median())
        );
        text
    }

    pub(crate) fn plot(&self) -> Plot {
        let rows = self.rows.len() as f64;
        let panel = HEAD + rows * ROW;
        let height = TOP + panel * PANELS.len() as f64 - 8.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{TITLE}\">\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n\
             <text class=\"title\" x=\"20\" y=\"28\">{TITLE} (logarithmic scales)</text>\n"
        );
        for (number, drawn) in PANELS.iter().enumerate() {
            drawn.draw(&mut svg, TOP + panel * number as f64, &self.rows);
        }
        Plot {
            file: "peers.svg".to_owned(),
            title: TITLE,
            svg: svg + "</svg>\n",
        }
    }
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String, top: f64, rows: &[(Contestant, Option<Figures>)]) {
        let _ = writeln!(
            svg,
            "<text class=\"head\" x=\"20\" y=\"{top}\">{}</text>",
            self.head
        );
        for (number, (contestant, figures)) in rows.iter().enumerate() {
            let at = top + 12.0 + ROW * number as f64;
            let class = match contestant {
                Contestant::Product => "bar own",
                _ => "bar",
            };
            let (length, label) = match figures {
                Some(figures) => (self.length((self.value)(figures)), (self.label)(figures)),
                None => (0.0, "not measured".to_owned()),
            };
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{contestant}</text>\
                 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{at}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{label}</text>",
                LEFT - 10.0,
                at + 15.0,
                LEFT + length + 8.0,
                at + 15.0
            );
        }
    }

    fn length(&self, value: f64) -> f64 {
        let (from, to) = self.decades;
        let decade = value.max(f64::MIN_POSITIVE).log10().clamp(from, to);
        (decade - from) / (to - from) * LONGEST
    }
}

impl Figures {
    fn cells(&self) -> String {
        [
            readable(self.cycle.median()),
            grouped(self.sections_a_second),
            self.served.to_string(),
            readable(self.waits.quantile(1.0)),
            format!("{:.2}", self.commands_a_section),
            format!(
                "{}, p99 {}",
                readable(self.hand_over.median()),
                readable(self.hand_over.quantile(0.99))
            ),
            self.commands_of_wait.to_string(),
        ]
        .join(" | ")
    }
}

/// Returns a time with two or three digits.
fn readable(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..1e3 => format!("{micros:.0} µs"),
        ..1e4 => format!("{:.1} ms", micros / 1e3),
        ..1e6 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

/// Returns a number in groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
