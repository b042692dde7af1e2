//! The report for people: `BENCHMARKS.md` with what most look for, `benches/figures.md` with all figures, and the plots.

use std::fs;
use std::path::Path;

use crate::Failure;
use crate::machine::Machine;
use crate::peers::Comparison;
use crate::plot::{self, Plot};
use crate::report::{Chapter, HEAD, Line};

const FILE: &str = "BENCHMARKS.md";
const FIGURES: &str = "benches/figures.md";
const PLOTS: &str = "benches/plots";

/// Writes the report into the repository.
pub(crate) fn write(chapters: &[Chapter], machine: &Machine) -> Result<(), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let plots = plot::plots(chapters);
    let comparison = chapters
        .iter()
        .find_map(|chapter| chapter.comparison.as_ref());
    let peers = comparison.map(Comparison::plot);
    fs::create_dir_all(root.join(PLOTS))?;
    for Plot { file, svg, .. } in plots.iter().chain(&peers) {
        fs::write(root.join(PLOTS).join(file), svg)?;
    }
    fs::write(root.join(FILE), summary(chapters, comparison, machine))?;
    fs::write(root.join(FIGURES), figures(chapters, &plots))?;
    println!("written: {FILE}, {FIGURES} and {PLOTS}/");
    Ok(())
}

fn summary(chapters: &[Chapter], comparison: Option<&Comparison>, machine: &Machine) -> String {
    let mut text = format!(
        "# Benchmarks\n\nMeasured on {} by `scripts/bench`, on one machine:\n\n\
         | | |\n|---|---|\n\
         | processor | {}, {} cores |\n| kernel | {} |\n| server | {}, on loopback |\n| commit | {} |\n",
        machine.date,
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.server,
        machine.commit
    );
    if let Some(comparison) = comparison {
        text += &format!(
            "\n## Compared with other locks\n\n{}{}",
            comparison.table(),
            picture(&comparison.plot(), PLOTS)
        );
    }
    text += &format!(
        "\n## Targets\n\n\
         Every shape, a way to use locks, is measured next to its **floor**, in turns, in the same run. The floor sends \
         the same scripts with the same keys and arguments through the same kind of client, with nothing around them. \
         What matters is the ratio to the floor, since absolute figures depend on the machine. Some figures are counts \
         or times instead, as their name says. [All figures]({FIGURES}) has the absolute figures, and says how each was \
         measured.\n\n"
    );
    text += &row(["chapter", "shape", "figure", "target", "reached"]);
    text += "|---|---|--:|---|---|\n";
    for chapter in chapters {
        let mut title = chapter.title;
        for [shape, _, _, figure, target, reached] in chapter.lines.iter().map(Line::cells) {
            if !target.is_empty() {
                text += &row([title, &shape, &figure, &target, &reached]);
                // Once for all rows of the chapter.
                title = "";
            }
        }
    }
    text
}

fn figures(chapters: &[Chapter], plots: &[Plot]) -> String {
    let mut text = "# All figures\n\nEvery figure of [BENCHMARKS.md](../BENCHMARKS.md), with how it was measured.\n".to_owned();
    for chapter in chapters {
        text += &format!("\n## {}\n\n{}\n\n", chapter.title, chapter.how);
        text += &row(HEAD);
        text += "|---|---|---|--:|---|---|\n";
        text.extend(chapter.lines.iter().map(Line::cells).map(row));
    }
    if !plots.is_empty() {
        text += "\n## Waits\n\n\
                 How long a call of `lock()` took, in fair shares of the same run. In perfect turns every call would wait \
                 for one.\n";
    }
    text.extend(plots.iter().map(|plot| picture(plot, "plots")));
    text
}

fn picture(Plot { file, title, .. }: &Plot, folder: &str) -> String {
    format!("\n![{title}]({folder}/{file})\n")
}

fn row<const N: usize>(cells: [impl AsRef<str>; N]) -> String {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    format!("| {} |\n", cells.join(" | "))
}
