//! docs/configuration.md against the code.

use std::path::Path;

use weir_settings::{Layer, SETTINGS, Setting, Settings};

use crate::all::{environment, file, policies, problems};

/// A row of a table of settings in docs/configuration.md.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    default: String,
    bounds: String,
    env: String,
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    std::fs::read_to_string(path).expect("the page is readable")
}

/// The rows of every table whose header begins with `Setting`.
fn rows(page: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut in_table = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.get(1) {
            Some(&"Setting") => in_table = true,
            Some(first) if in_table && first.starts_with('`') => {
                assert_eq!(cells.len(), 7, "cells of {line}");
                assert!(cells[5].len() > 10, "no explanation: {line}");
                let plain = |cell: usize| cells[cell].replace('`', "");
                rows.push(Row { name: plain(1), default: plain(2), bounds: plain(3), env: plain(4) });
            }
            Some(_) => {}
            None => in_table = false,
        }
    }
    rows
}

#[test]
fn the_page_lists_every_setting_with_its_default_bounds_and_variable() {
    let rows = rows(&page());
    let expected: Vec<Row> = SETTINGS
        .iter()
        .map(|setting| Row {
            name: setting.name.to_owned(),
            default: setting.default_text(),
            bounds: setting.bounds(),
            env: setting.env_name(),
        })
        .collect();
    for row in &rows {
        assert!(expected.contains(row), "not in the code: {row:?}");
    }
    for row in &expected {
        let times = rows.iter().filter(|found| *found == row).count();
        assert_eq!(times, 1, "on the page {times} times: {row:?}");
    }
}

#[test]
fn every_name_and_variable_the_page_mentions_exists() {
    let page = page();
    let groups: Vec<&str> = SETTINGS.iter().filter_map(|setting| Some(setting.name.split_once('.')?.0)).collect();
    let mut names = 0;
    // The output of a mistake names what does not exist.
    let (before, mistakes) = page.split_once("```text\n").unwrap();
    let (_, after) = mistakes.split_once("```").unwrap();
    let page = format!("{before}{after}");
    for word in page.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))) {
        let word = word.trim_matches('.');
        let is_page = word.ends_with(".md");
        let of_a_group = !is_page && word.split_once('.').is_some_and(|(group, _)| groups.contains(&group));
        if of_a_group {
            names += 1;
            assert!(Setting::find(word).is_some(), "{word} is no setting");
        }
        if word.starts_with("WEIR__") && word != "WEIR__" {
            let exists = SETTINGS.iter().any(|setting| setting.env_name() == word);
            assert!(exists, "{word} is no variable");
        }
    }
    assert!(names >= SETTINGS.len());
}

#[test]
fn the_examples_on_the_page_are_legal() {
    let page = page();
    let mut files = 0;
    for block in page.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let loaded = Settings::load(&[file(text), policies()]);
        assert!(loaded.is_ok(), "{text}{}", loaded.unwrap_err());
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn the_mistakes_on_the_page_are_reported_as_it_says() {
    let page = page();
    let (_, shown) = page.split_once("```text\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let mut flag = Layer::default();
    flag.flag("store", "rediss", "--store");
    let printed = problems(&[
        file("# file\nredis:\n  timeout: 10"),
        environment(&[("WEIR__REDIS__POOLSIZE", "3")]),
        flag,
        policies(),
    ]);
    assert_eq!(printed, shown.trim_end());
}
