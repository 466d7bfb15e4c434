//! docs/simulation.md: that its examples are valid, and that it has every member and every bound.

use std::fs;
use std::path::Path;

use serde_json::Value;
use weir_cli::simulate::{POLICIES_MAX, SimulateArguments};
use weir_lab::simulation::traffic::{LINE_BYTES_MAX, WAITING_BYTES_MAX, WAITING_MAX};
use weir_lab::simulation::{KEYS_MAX as COUNTED_KEYS_MAX, REQUESTS_MAX, SLOTS_MAX};
use weir_policies::traffic_file::{FILE_BYTES_MAX, KEYS_MAX, SOURCES_MAX, parse};

use super::Written;
use crate::members::{members, members_of_form};

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulation.md")).expect("the page")
}

fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

#[test]
fn the_bounds_are_those_of_the_code() {
    let page = page();
    for text in [
        format!("| size of a file of traffic | {} MiB |", FILE_BYTES_MAX >> 20),
        format!("| sources in a file | {SOURCES_MAX} |"),
        format!("| keys of all sources of a file | {} |", number(KEYS_MAX.into())),
        format!("| length of a line of a record or a log | {} MiB |", LINE_BYTES_MAX >> 20),
        format!(
            "| lines that weir sorts at a time | {}, or fewer if their requests take {} MiB |",
            number(WAITING_MAX as u64),
            WAITING_BYTES_MAX >> 20
        ),
        format!("| policies | {POLICIES_MAX} |"),
        format!("{} keys are counted one by one", number(COUNTED_KEYS_MAX as u64)),
        format!("at most {SLOTS_MAX} slots"),
        format!("{} unless you say otherwise |", number(REQUESTS_MAX)),
    ] {
        assert!(page.contains(&text), "{text}");
    }
}

#[test]
fn the_examples_are_valid() {
    let page = page();
    let blocks: Vec<&str> =
        page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().expect("an end")).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        parse(&"page".into(), block, Path::new("")).unwrap_or_else(|problems| panic!("{problems}"));
    }
    let row = |line: &&str| line.starts_with("| `") && line.ends_with(" |") && line.matches(" | ").count() == 3;
    let mut examples = 0;
    for line in page.lines().filter(row) {
        let example = line.trim_end_matches(" |").rsplit(" | ").next().expect("a cell").trim_matches('`');
        let text = match example.strip_prefix('{') {
            Some(_) => format!("duration: 1h\ndomain: shop\nsources: [{example}]"),
            None if example.starts_with("duration") || example.starts_with("sources") => {
                format!(
                    "{example}\ndomain: shop\n{}",
                    if example.starts_with("d") { "sources: [{ask: a=1, rate: 1/s}]" } else { "duration: 1h" }
                )
            }
            None if example.starts_with("access_log") => example.to_owned(),
            None => {
                let domain = if example.starts_with("domain") { "" } else { "domain: shop\n" };
                format!("{example}\n{domain}duration: 1h\nsources: [{{ask: a=1, rate: 1/s}}]")
            }
        };
        parse(&"page".into(), &text, Path::new("")).unwrap_or_else(|problems| panic!("{example}: {problems}"));
        examples += 1;
    }
    assert!(examples >= 15, "{examples}");
}

#[test]
fn the_page_names_every_member_of_the_results() {
    let written = Written::new();
    let path = written.write("t.traffic.yaml", "duration: 1m\ndomain: shop\nsources: [{ask: user=ann, rate: 1/s}]");
    let json = written.path("out.json");
    written.ran(&SimulateArguments { json: Some(json.clone()), ..written.arguments(path) });
    let results: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let mut found = Vec::new();
    members(&results, &mut found);
    assert!(found.len() > 50);
    let page = page();
    let form = page.split("### JSON").nth(1).unwrap().split("```").nth(1).unwrap();
    for member in &found {
        assert!(form.contains(&format!("\"{member}\"")), "{member} is not on the page");
    }
    for name in members_of_form(form) {
        assert!(found.iter().any(|member| member == name), "{name} is no member");
    }
}

#[test]
fn the_picture_of_the_page_about_policies_is_what_weir_draws() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/policies.md")).expect("the page");
    let (_, section) = page.split_once("### Side by side").expect("the section");
    let fences: Vec<&str> = section.split("```").collect();
    // A user who asks too fast, and a backend that becomes slow.
    for (command, picture) in [(fences[1], fences[3]), (fences[5], fences[7])] {
        check_picture(root, command, picture.strip_prefix("text\n").expect("a picture"));
    }
}

fn check_picture(root: &Path, command: &str, picture: &str) {
    let words = command.lines().find(|line| line.starts_with("weir simulate")).expect("the command").split_whitespace();
    let examples = root.join("examples/simulate");
    let words: Vec<_> =
        words.skip(2).map(|word| if word.starts_with("--") { word.into() } else { examples.join(word) }).collect();
    let written = Written::new();
    let arguments = SimulateArguments { policies: words[2..].to_vec(), ..written.arguments(words[1].clone()) };
    let (report, _) = written.ran(&arguments);
    let drawn = report.replace(&format!("{}/", examples.display()), "");
    assert!(drawn.starts_with(picture), "{drawn}");
}
