//! What `weir check` finds, for editors and continuous integration: one document of JSON, or of SARIF 2.1.0.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::{Value, json};
use weir_lab::testing::Strictness;
use weir_policies::files::Source;
use weir_policies::{Code, Dialect, Loaded, Problems, load};
use weir_settings::Settings;
use weir_text::percent_encoded;
use weir_text::yaml::Position;

use super::{Beside, Failed, judged, no_policies, other_file, prepared, read_by_settings};

/// The rule of a finding that is no warning.
const ERROR: &str = "error";

/// The rule of a warning about a file that the settings name, beside policies.
const FILE: &str = "file";

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckFormat {
    /// For people, with a tree of the limits.
    Text,
    /// One JSON document.
    Json,
    /// One document of SARIF 2.1.0, which code hosts and editors show in place.
    Sarif,
}

/// As [`super::run`], but writes only what it finds, also when policies are wrong.
///
/// # Errors
/// As [`super::run`].
pub fn report(
    source: impl Into<Source>,
    dialect: Dialect,
    strictness: Strictness,
    format: CheckFormat,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let source = source.into();
    let read = match other_file(&source.directory) {
        Some(check) => check(&source.directory, &mut io::sink()).map(|()| None),
        None => load(&source, dialect)
            .map_err(|problems| no_policies(&source.directory, problems))
            .map(|loaded| Some((loaded, source))),
    };
    written(read, None, &[], strictness, format, out)
}

/// As [`super::run_settings`], but writes only what it finds, also when policies are wrong.
///
/// # Errors
/// As [`super::run_settings`].
pub fn report_settings(
    settings: &Settings,
    directory: Option<PathBuf>,
    strictness: Strictness,
    format: CheckFormat,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let mut warnings = Vec::new();
    let read = Beside::read(settings).and_then(|beside| {
        let read = read_by_settings(settings, directory)?;
        warnings = read.as_ref().map_or_else(|| beside.warnings.clone(), |(loaded, _)| beside.warnings_with(loaded));
        Ok(read)
    });
    written(read, Some(settings), &warnings, strictness, format, out)
}

/// Writes what is found in policies. `read` has none for a file of tests or traffic.
fn written(
    read: Result<Option<(Loaded, Source)>, Failed>,
    settings: Option<&Settings>,
    more_warnings: &[String],
    strictness: Strictness,
    format: CheckFormat,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let checked = read.and_then(|read| read.map(|(loaded, source)| prepared(loaded, &source, settings)).transpose());
    let mut findings = match &checked {
        Ok(Some((loaded, _))) => of_warnings(loaded),
        Ok(None) => Findings::default(),
        Err(error @ (Failed::File(_) | Failed::Tokens(_))) => of_texts(ERROR, &[error.to_string()]),
        Err(Failed::Policies(problems)) => of_problems(problems),
        Err(Failed::Rows(problems)) => of_texts(ERROR, problems),
        Err(_) => return checked.map(|_| ()),
    };
    findings.list.extend(of_texts(FILE, more_warnings).list);
    let document = if format == CheckFormat::Sarif { findings.sarif() } else { findings.json() };
    writeln!(out, "{document:#}")?;
    let of_policies = checked?.map_or(0, |(loaded, _)| loaded.warnings.count());
    judged(of_policies + more_warnings.len(), strictness)
}

#[derive(Default)]
struct Findings {
    list: Vec<Finding>,
    /// The number of findings that the list does not have.
    more: usize,
}

struct Finding {
    /// The name of a warning, or `error`.
    rule: &'static str,
    message: String,
    file: String,
    position: Option<Position>,
}

fn of_warnings(loaded: &Loaded) -> Findings {
    let all = loaded.warnings.list();
    let list = all.iter().map(|warning| Finding {
        rule: warning.code.name(),
        message: warning.message.clone(),
        file: warning.file.to_string(),
        position: Some(warning.position),
    });
    Findings { list: list.collect(), more: loaded.warnings.count() - all.len() }
}

fn of_problems(problems: &Problems) -> Findings {
    let all = problems.list();
    let list = all.iter().map(|problem| Finding {
        rule: ERROR,
        message: problem.message.clone(),
        file: problem.file.to_string(),
        position: problem.position,
    });
    Findings { list: list.collect(), more: problems.count() - all.len() }
}

/// Problems that are texts: `FILE:LINE: MESSAGE`, or only a message.
fn of_texts(rule: &'static str, problems: &[String]) -> Findings {
    let finding = |problem: &String| {
        let placed = problem.split_once(": ").and_then(|(place, message)| {
            let (file, line) = place.rsplit_once(':')?;
            Some((file, line.parse().ok()?, message))
        });
        let (file, position, message) = match placed {
            Some((file, line, message)) => (file, Some(Position { line, column: 1 }), message),
            None => ("", None, &**problem),
        };
        Finding { rule, message: message.to_owned(), file: file.to_owned(), position }
    };
    Findings { list: problems.iter().map(finding).collect(), more: 0 }
}

impl Finding {
    fn level(&self) -> &'static str {
        if self.rule == ERROR { ERROR } else { "warning" }
    }
}

impl Findings {
    fn json(&self) -> Value {
        let finding = |finding: &Finding| {
            json!({
                "rule": finding.rule,
                "level": finding.level(),
                "message": finding.message,
                "file": finding.file,
                "line": finding.position.map(|at| at.line),
                "column": finding.position.map(|at| at.column),
            })
        };
        json!({ "findings": self.list.iter().map(finding).collect::<Vec<_>>(), "more": self.more })
    }

    fn sarif(&self) -> Value {
        let result = |finding: &Finding| {
            let uri = percent_encoded(&finding.file, |byte| byte == b'/');
            let mut place = json!({ "artifactLocation": { "uri": uri } });
            if let Some(Position { line, column }) = finding.position {
                place["region"] = json!({ "startLine": line, "startColumn": column });
            }
            let mut result = json!({
                "ruleId": finding.rule,
                "level": finding.level(),
                "message": { "text": finding.message },
            });
            if !finding.file.is_empty() {
                result["locations"] = json!([{ "physicalLocation": place }]);
            }
            result
        };
        let rules = Code::ALL.iter().map(|code| json!({ "id": code.name(), "help": { "text": code.advice() } }));
        let file = json!({ "id": FILE, "help": { "text": "correct the file: weir starts with it" } });
        let error = json!({ "id": ERROR, "help": { "text": "correct the file: weir refuses it" } });
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": "weir",
                    "version": env!("CARGO_PKG_VERSION"),
                    "rules": rules.chain([file, error]).collect::<Vec<_>>(),
                } },
                "columnKind": "unicodeCodePoints",
                "results": self.list.iter().map(result).collect::<Vec<_>>(),
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(text: &str, format: CheckFormat, strictness: Strictness) -> (bool, Value, String) {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("a shop.yaml");
        std::fs::write(&file, text).unwrap();
        let mut out = Vec::new();
        let result = report(directory.path(), Dialect::default(), strictness, format, &mut out);
        (result.is_ok(), serde_json::from_slice(&out).unwrap(), file.display().to_string())
    }

    #[test]
    fn warnings_and_problems_have_their_places() {
        let warned = "domain: shop\ndescriptors: [{key: a}]\n";
        let (is_ok, json, file) = reported(warned, CheckFormat::Json, Strictness::Lenient);
        let message = format!("no limit here and below, so this limits nothing: {}", Code::NoLimit.advice());
        let finding = json!({
            "rule": "no_limit", "level": "warning", "message": message, "file": file, "line": 2, "column": 15,
        });
        assert_eq!((is_ok, json), (true, json!({ "findings": [finding], "more": 0 })));
        assert!(!reported(warned, CheckFormat::Json, Strictness::Strict).0);

        let wrong = "domain: shop\ndescriptors: [{key: a, rate_limit: 5}]\n";
        let (is_ok, json, _) = reported(wrong, CheckFormat::Json, Strictness::Lenient);
        let found = &json["findings"][0];
        assert!(!is_ok);
        assert_eq!((&found["rule"], &found["level"]), (&json!("error"), &json!("error")));
        assert_eq!((&found["line"], &found["column"]), (&json!(2), &json!(36)), "{found}");

        let nothing = "domain: shop\ndescriptors: []\n";
        let (is_ok, json, _) = reported(nothing, CheckFormat::Json, Strictness::Strict);
        assert_eq!((is_ok, json), (true, json!({ "findings": [], "more": 0 })));
    }

    #[test]
    fn sarif_names_a_rule_and_a_region() {
        let (is_ok, sarif, file) = reported("domain: shop\n", CheckFormat::Sarif, Strictness::Lenient);
        assert!(is_ok);
        assert_eq!(sarif["version"], "2.1.0");
        let run = &sarif["runs"][0];
        let result = &run["results"][0];
        assert_eq!((&result["ruleId"], &result["level"]), (&json!("no_descriptors"), &json!("warning")));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], file.replace(' ', "%20"));
        assert_eq!(place["region"], json!({ "startLine": 1, "startColumn": 9 }));
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        for id in ["no_descriptors", "error"] {
            assert_eq!(rules.iter().filter(|rule| rule["id"] == id).count(), 1, "{id}");
        }
    }

    #[test]
    fn problems_of_rows_have_their_lines() {
        let found = of_texts(ERROR, &["p/a.rows.csv:7: no plan \"x\"".to_owned(), "too many: 9".to_owned()]).json();
        assert_eq!(found["findings"][0]["file"], "p/a.rows.csv");
        assert_eq!(found["findings"][0]["line"], 7);
        assert_eq!(found["findings"][1]["message"], "too many: 9");
        assert_eq!(found["findings"][1]["level"], "error");
    }
}
