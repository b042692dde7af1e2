//! The results: chapters of lines, as a table for people and as figures for scripts.

use std::fmt::Write;
use std::time::Duration;

use crate::crowd::Crowd;
use crate::machine::Machine;
use crate::peers::Comparison;

/// The results of one part of the suite.
pub(crate) struct Chapter {
    pub(crate) title: &'static str,
    /// How it was measured, in a sentence or two.
    pub(crate) how: &'static str,
    pub(crate) lines: Vec<Line>,
    pub(crate) curves: Vec<Curve>,
    /// What the report for people begins with.
    pub(crate) comparison: Option<Comparison>,
}

/// One shape next to its floor.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) shape: String,
    pub(crate) product: String,
    pub(crate) floor: String,
    pub(crate) figure: Option<Figure>,
}

/// A ratio or a count, with the key under which scripts find it.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) key: String,
    pub(crate) value: f64,
    target: Target,
}

/// The target of a figure. Nothing fails if the figure misses it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    None,
}

/// The distribution of the waits of one crowd.
#[derive(Debug)]
pub(crate) struct Curve {
    /// The plot that it belongs to.
    pub(crate) plot: &'static str,
    pub(crate) label: String,
    /// The wait in fair shares, and the share of all calls that waited no longer.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Figure {
    pub(crate) fn new(key: &str, value: f64, target: Target) -> Self {
        Self {
            key: key.to_owned(),
            value,
            target,
        }
    }
}

impl Target {
    fn reached(self, value: f64) -> &'static str {
        let reached = match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::None => return "",
        };
        if reached { "yes" } else { "no" }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::AtLeast(least) => write!(f, "≥ {least}"),
            Self::None => Ok(()),
        }
    }
}

impl Curve {
    pub(crate) fn new(plot: &'static str, label: &str, crowd: &Crowd, tasks: usize) -> Self {
        let fair = crowd.fair_share(tasks);
        // Evenly spaced in the number of nines, like the plot, down to the last call.
        let nines = (crowd.waits.count().max(1) as f64).log10();
        let shares = (0..=200).map(|step| 1.0 - 10f64.powf(-nines * f64::from(step) / 200.0));
        Self {
            plot,
            label: label.to_owned(),
            points: shares
                .map(|share| (of_fair(crowd.waits.quantile(share), fair), share))
                .collect(),
        }
    }
}

/// Returns a wait in fair shares.
pub(crate) fn of_fair(wait: Duration, fair: Duration) -> f64 {
    wait.as_secs_f64() / fair.as_secs_f64()
}

/// Returns a rate per second, as text.
pub(crate) fn rate(per_second: f64) -> String {
    format!("{per_second:.0}/s")
}

/// The head of every table.
pub(crate) const HEAD: [&str; 6] = ["shape", "product", "floor", "ratio", "target", "reached"];

impl Line {
    /// Returns the cells of this line, under [`HEAD`].
    pub(crate) fn cells(&self) -> [String; 6] {
        let [ratio, target, reached] = match &self.figure {
            Some(Figure { value, target, .. }) => [
                format!("{value:.3}"),
                target.to_string(),
                target.reached(*value).to_owned(),
            ],
            None => Default::default(),
        };
        let [shape, product, floor] = [&self.shape, &self.product, &self.floor].map(String::clone);
        [shape, product, floor, ratio, target, reached]
    }
}

/// Returns one table of all lines, for a terminal.
pub(crate) fn table(chapters: &[Chapter], machine: &Machine) -> String {
    let lines = chapters.iter().flat_map(|chapter| &chapter.lines);
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(lines.map(Line::cells));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).filter_map(width).collect();
    let mut text = format!("{machine}\ncommit {}\n\n", machine.commit);
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Returns a flat JSON object of all figures, with the commit and the machine.
pub(crate) fn json(chapters: &[Chapter], machine: &Machine) -> String {
    let mut text = String::from("{\n");
    let lines = chapters.iter().flat_map(|chapter| &chapter.lines);
    for Figure { key, value, .. } in lines.filter_map(|line| line.figure.as_ref()) {
        // JSON cannot express NaN or infinity.
        let value = if value.is_finite() {
            format!("{value:.4}")
        } else {
            "null".to_owned()
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}: {value},", quoted(key));
    }
    let (commit, machine) = (quoted(&machine.commit), quoted(&machine.to_string()));
    text + &format!("  \"commit\": {commit},\n  \"machine\": {machine}\n}}\n")
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted + "\""
}
