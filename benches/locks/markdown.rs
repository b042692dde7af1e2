//! The report for people: `BENCHMARKS.md`, with its plots.

use std::fs;
use std::path::Path;

use crate::Failure;
use crate::machine::Machine;
use crate::peers::Comparison;
use crate::plot::{self, Plot};
use crate::report::{Chapter, HEAD, Line};

const FILE: &str = "BENCHMARKS.md";
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
    fs::write(root.join(FILE), text(chapters, &plots, comparison, machine))?;
    println!("written: {FILE} and {PLOTS}/");
    Ok(())
}

fn text(
    chapters: &[Chapter],
    plots: &[Plot],
    comparison: Option<&Comparison>,
    machine: &Machine,
) -> String {
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
        text += &format!("\n{}{}", comparison.table(), picture(&comparison.plot()));
    }
    text += "\n## How to read the rest\n\n\
             Every shape stands beside its **floor**, measured in the same run and in turns with it: the same scripts with \
             the same keys and arguments through the same kind of client, with nothing around them. What matters is the \
             ratio; the absolute figures are those of one machine. A target that was missed is shown as such.\n";
    for chapter in chapters {
        text += &format!("\n## {}\n\n{}\n\n", chapter.title, chapter.how);
        text += &row(HEAD.map(str::to_owned));
        text += "|---|---|---|--:|---|---|\n";
        text.extend(chapter.lines.iter().map(Line::cells).map(row));
    }
    if !plots.is_empty() {
        text += "\n## Waits\n\n\
                 How long a call of `lock()` took, in fair shares of the same run. In perfect turns every call would wait \
                 for one.\n";
    }
    text.extend(plots.iter().map(picture));
    text
}

fn picture(Plot { file, title, .. }: &Plot) -> String {
    format!("\n![{title}]({PLOTS}/{file})\n")
}

fn row(cells: [String; 6]) -> String {
    format!("| {} |\n", cells.join(" | "))
}
