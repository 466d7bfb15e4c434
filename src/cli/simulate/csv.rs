//! Results of a simulation as CSV (RFC 4180), for spreadsheets: one record a line, of one of a few kinds.
//!
//! Texts are quoted, without control characters. Keys come from callers, so a text that a spreadsheet could read as a
//! formula gets a leading apostrophe.

use weir_engine::words::printable;
use weir_lab::simulation::report::{Count, OverTime, PolicyReport, Report};
use weir_text::instant_text;

const COLUMNS: &str = "record,policies,time,domain,rule,limit,key,requests,passed,denied,delayed,hits,hits_denied";
/// The characters that begin a formula.
const FORMULA: [char; 4] = ['=', '+', '-', '@'];

/// The subject of a record. None gives an empty cell.
#[derive(Clone, Copy, Default)]
struct Subject<'a> {
    policies: &'a str,
    time: Option<u64>,
    domain: Option<&'a str>,
    rule: Option<&'a str>,
    limit: Option<&'a str>,
    key: Option<&'a str>,
}

pub(super) fn document(report: &Report) -> String {
    let mut text = format!("{COLUMNS}\r\n");
    if report.traffic.could_not_tell > 0 {
        let numbers = [Some(report.traffic.could_not_tell), None, None, None];
        line("could_not_tell", &Subject::default(), numbers, [None; 2], &mut text);
    }
    for policies in &report.policies {
        of_policies(policies, &mut text);
    }
    text
}

fn of_policies(policies: &PolicyReport, text: &mut String) {
    let subject = Subject { policies: &policies.name, ..Subject::default() };
    let numbers = [policies.requests(), policies.passed, policies.denied, policies.delayed];
    line("total", &subject, numbers.map(Some), [None; 2], text);
    let time = &policies.over_time;
    for (slot, ((passed, denied), delayed)) in time.passed.iter().zip(&time.denied).zip(&time.delayed).enumerate() {
        let subject = Subject { time: Some(at(time, slot)), ..subject };
        let numbers = [passed + denied, *passed, *denied, *delayed];
        line("time", &subject, numbers.map(Some), [None; 2], text);
    }
    for limit in &policies.limits {
        let subject = Subject {
            domain: limit.domain.as_deref(),
            rule: Some(&limit.rule),
            limit: limit.limit.as_deref(),
            ..subject
        };
        count("limit", &subject, limit.count, text);
        let Some(over_time) = &limit.over_time else { continue };
        for (slot, (within, over)) in over_time.within.iter().zip(&over_time.over).enumerate() {
            let subject = Subject { time: Some(at(time, slot)), ..subject };
            line("limit_time", &subject, [Some(within + over), Some(*within), Some(*over), None], [None; 2], text);
        }
    }
    for key in &policies.keys {
        let subject = Subject {
            domain: key.domain.as_deref(),
            rule: Some(&key.rule),
            limit: key.limit.as_deref(),
            key: Some(&key.key),
            ..subject
        };
        count("key", &subject, key.count, text);
    }
    if policies.other_keys.requests > 0 {
        count("other_keys", &subject, policies.other_keys, text);
    }
}

fn at(time: &OverTime, slot: usize) -> u64 {
    time.start_us + slot as u64 * time.slot_us
}

fn count(record: &str, subject: &Subject<'_>, count: Count, text: &mut String) {
    let Count { requests, over, hits, hits_over } = count;
    line(
        record,
        subject,
        [Some(requests), Some(requests - over), Some(over), None],
        [Some(hits), Some(hits_over)],
        text,
    );
}

fn line(record: &str, subject: &Subject<'_>, requests: [Option<u64>; 4], hits: [Option<u64>; 2], text: &mut String) {
    let Subject { policies, time, domain, rule, limit, key } = *subject;
    let time = time.map(instant_text);
    let mut cells = vec![record.to_owned()];
    cells.extend([Some(policies), time.as_deref(), domain, rule, limit, key].map(quoted));
    let number = |number: &Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    cells.extend(requests.iter().chain(&hits).map(number));
    text.push_str(&cells.join(","));
    text.push_str("\r\n");
}

fn quoted(text: Option<&str>) -> String {
    let Some(text) = text else { return String::new() };
    let guard = if text.starts_with(FORMULA) { "'" } else { "" };
    let text = printable(text);
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_formula_or_ends_its_cell() {
        for (text, expected) in [
            ("user=ann", "\"user=ann\""),
            ("=cmd()", "\"'=cmd()\""),
            ("@a", "\"'@a\""),
            ("a\",\"b", "\"a\"\",\"\"b\""),
            ("a\r\nb", "\"a\\r\\nb\""),
            ("\u{1b}[2J\u{202e}\u{0}", "\"\\u{1b}[2J\\u{202e}\\0\""),
            ("\t=a", "\"\\t=a\""),
        ] {
            assert_eq!(quoted(Some(text)), expected);
        }
        assert_eq!(quoted(None), "");
    }
}
