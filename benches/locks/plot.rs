//! The distributions of waits, as SVG.
//!
//! The x axis is the wait in fair shares, on a logarithmic scale. The y axis is the share of all calls that waited no
//! longer, in nines, so that the slowest calls have as much room as the others.

use std::fmt::Write;

use crate::report::{Chapter, Curve};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// The decades of the x axis: from a hundredth of a fair share to a hundred.
const DECADES: (f64, f64) = (-2.0, 2.0);
const NINES: f64 = 5.0;
const SHARES: [(f64, &str); 7] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];
const WAITS: [(f64, &str); 7] = [
    (0.01, "0.01"),
    (0.1, "0.1"),
    (1.0, "1"),
    (2.0, "2"),
    (4.0, "4"),
    (10.0, "10"),
    (100.0, "100"),
];
const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 15px; font-weight: 600 }
  .paper { fill: #ffffff }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .fair { stroke: #57606a; stroke-width: 1; stroke-dasharray: 4 3 }
  .curve { fill: none; stroke-width: 2; stroke-linejoin: round }
  .c0 { stroke: #0969da } .c1 { stroke: #bc4c00 } .c2 { stroke: #1a7f37 } .c3 { stroke: #8250df }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .paper { fill: #0d1117 }
    .grid { stroke: #30363d }
    .fair { stroke: #8b949e }
    .c0 { stroke: #58a6ff } .c1 { stroke: #ffa657 } .c2 { stroke: #56d364 } .c3 { stroke: #d2a8ff }
  }
";

/// A plot, and the name of its file.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) file: String,
    pub(crate) title: &'static str,
    pub(crate) svg: String,
}

/// Draws every plot that the chapters have curves for.
pub(crate) fn plots(chapters: &[Chapter]) -> Vec<Plot> {
    [
        ("tasks", "Waits of 64 tasks of one process"),
        ("processes", "Waits of processes"),
    ]
    .into_iter()
    .filter_map(|(name, title)| {
        let curves = chapters.iter().flat_map(|chapter| &chapter.curves);
        let curves: Vec<&Curve> = curves.filter(|curve| curve.plot == name).collect();
        (!curves.is_empty()).then(|| Plot {
            file: format!("{name}.svg"),
            title,
            svg: draw(title, &curves),
        })
    })
    .collect()
}

fn draw(title: &str, curves: &[&Curve]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n"
    );
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        svg,
        "<text class=\"title\" x=\"{LEFT}\" y=\"28\">{title}</text>"
    );
    grid(&mut svg);
    for (number, curve) in curves.iter().enumerate() {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|(wait, share)| format!("{:.1},{:.1}", x(*wait), y(*share)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"curve c{number}\" points=\"{}\"/>",
            points.join(" ")
        );
        // The curves rise from the lower left, so the upper left is free for their labels.
        let at = TOP + 22.0 + 20.0 * number as f64;
        let (from, to, label) = (LEFT + 14.0, LEFT + 40.0, &curve.label);
        let _ = writeln!(
            svg,
            "<path class=\"curve c{number}\" d=\"M{from} {at}H{to}\"/>\
             <text x=\"{}\" y=\"{}\">{label}</text>",
            to + 8.0,
            at + 4.0
        );
    }
    svg + "</svg>\n"
}

fn grid(svg: &mut String) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (share, label) in SHARES {
        let at = y(share);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for (wait, label) in WAITS {
        let (at, class) = (x(wait), if wait == 1.0 { "fair" } else { "grid" });
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 20.0
        );
    }
    let (middle, height) = (f64::midpoint(LEFT, right), f64::midpoint(TOP, bottom));
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">wait, in fair shares (1 = a section of every task)</text>\
         <text transform=\"translate(18 {height}) rotate(-90)\" text-anchor=\"middle\">calls served within it</text>",
        bottom + 44.0
    );
}

fn x(wait: f64) -> f64 {
    let (from, to) = DECADES;
    let decade = wait.max(f64::MIN_POSITIVE).log10().clamp(from, to);
    LEFT + (decade - from) / (to - from) * (WIDTH - LEFT - RIGHT)
}

fn y(share: f64) -> f64 {
    let nines = -(1.0 - share).max(f64::MIN_POSITIVE).log10();
    HEIGHT - BOTTOM - nines.clamp(0.0, NINES) / NINES * (HEIGHT - TOP - BOTTOM)
}
