//! What is generated from tables of the code: the schemas in schemas/, and the tables below `<!-- keys of ... -->` and
//! `<!-- variables -->` on pages.
//!
//! `UPDATE_EXPECTED=1` writes them.

use std::fs;
use std::path::Path;

use weir_policies::schema::Schema;
use weir_policies::{Kind, Row, caller_file, overlay, test_file, traffic_file};
use weir_settings::envoy_ratelimit::{Effect, VARIABLES};

/// Mappings that a page explains in another table.
const WITHOUT_TABLE: [&str; 2] = ["a status", "an entry"];

#[test]
fn generated_files_are_fresh() {
    let of_schema = |schema: Schema| (format!("schemas/{}.json", schema.name()), format!("{:#}\n", schema.document()));
    let mut files = Schema::ALL.map(of_schema).to_vec();
    files.push(page("docs/policies.md", &[&weir_policies::KINDS[..], &overlay::KINDS[..2]].concat()));
    files.push(page("docs/running.md", &caller_file::KINDS));
    files.push(page("docs/testing.md", &test_file::KINDS));
    // Descriptors and entries are on the page about tests.
    files.push(page("docs/simulation.md", &traffic_file::KINDS[..3]));
    files.push(variables());
    for (path, text) in files {
        let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path);
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&full, &text).expect("a file that can be written");
        }
        let kept = fs::read_to_string(&full).unwrap_or_default();
        assert!(kept == text, "{path} differs: run this test with UPDATE_EXPECTED=1");
    }
}

/// A page with its tables of keys as they must be.
fn page(path: &str, kinds: &[&Kind]) -> (String, String) {
    let mut text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a page");
    for kind in kinds.iter().filter(|kind| !WITHOUT_TABLE.contains(&kind.name)) {
        replace(&mut text, &format!("keys of {}", kind.name), &table(kind));
    }
    (path.to_owned(), text)
}

/// Replaces the table below a mark.
fn replace(page: &mut String, name: &str, table: &str) {
    let mark = format!("<!-- {name} -->\n\n");
    let at = page.find(&mark).unwrap_or_else(|| panic!("no page has {mark}")) + mark.len();
    let old = page[at..].find("\n\n").map_or(page.len() - at, |end| end + 1);
    page.replace_range(at..at + old, table);
}

/// The page with every variable of envoyproxy/ratelimit.
fn variables() -> (String, String) {
    let path = "docs/variables.md";
    let mut text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a page");
    let quoted = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    let mut table =
        "| Variable | Type | Default there | Setting of weir | What weir does |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for variable in VARIABLES {
        let settings = match variable.effect {
            Effect::Nothing => "no effect".to_owned(),
            Effect::Is(..) | Effect::Part(_) => {
                variable.settings().into_iter().map(quoted).collect::<Vec<_>>().join(", ")
            }
        };
        let (name, kind, default) = (variable.name, variable.kind.name(), quoted(variable.default));
        table.push_str(&format!("| `{name}` | {kind} | {default} | {settings} | {} |\n", variable.about));
    }
    replace(&mut text, "variables", &table);
    (path.to_owned(), text)
}

/// A line for each key. Keys with the same text and default are in one line, with the first example.
fn table(kind: &Kind) -> String {
    let algorithms = kind.keys.iter().any(|row| row.only.is_some());
    let examples = kind.keys.iter().any(|row| !row.example.is_empty());
    let defaults = kind.keys.iter().any(|row| row.default != "none");
    let line = |cells: [&str; 5]| {
        let shown = [true, true, defaults, algorithms, examples];
        let cells = cells.iter().zip(shown).filter(|(_, shown)| *shown).map(|(cell, _)| cell.replace('|', "\\|"));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(["key", "value", "default", "algorithms", "example"]);
    text.push_str(&line(["---"; 5]));
    for rows in kind.keys.chunk_by(|one, other| (one.about, one.default) == (other.about, other.default)) {
        let names: Vec<_> = rows.iter().map(|row| format!("`{}`", row.name)).collect();
        let example = rows[0].example;
        let example = if example.is_empty() { String::new() } else { format!("`{example}`") };
        text.push_str(&line([&names.join(", "), rows[0].about, rows[0].default, &takers(&rows[0]), &example]));
    }
    for ignored in kind.ignored {
        text.push_str(&line([&format!("`{ignored}`"), "read and ignored, with a warning", "none", "all", ""]));
    }
    text
}

/// The algorithms that accept a key.
fn takers(row: &Row) -> String {
    let Some(only) = &row.only else { return "all".to_owned() };
    let listed = |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let taken: Vec<_> = only.algorithms().collect();
    let others: Vec<_> = weir_engine::Algorithm::NAMES.into_iter().filter(|name| !taken.contains(name)).collect();
    if others.len() <= 2 { format!("all but {}", listed(others)) } else { listed(taken) }
}
