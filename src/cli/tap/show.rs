//! Records as a table for people: a row for each descriptor, in columns that grow with their content.

use std::fmt::Write as _;

use weir_api::tap::{Descriptor, Record};
use weir_engine::descriptor::spell_pairs;
use weir_engine::words::{counted, printable};

/// The largest width of a column, in characters.
const WIDTH_MAX: usize = 40;
/// `2026-12-01T` before the time of the day, in bytes.
const DATE_BYTES: usize = 11;
/// `10:00:00.123`.
const TIME_BYTES: usize = 12;

const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";
const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";

pub(super) struct Table {
    is_coloured: bool,
    domain_width: usize,
    rule_width: usize,
}

impl Table {
    pub(super) const fn new(is_coloured: bool) -> Self {
        Self { is_coloured, domain_width: 8, rule_width: 16 }
    }

    pub(super) fn heading(&self) -> String {
        let (domain, rule) = (self.domain_width, self.rule_width);
        format!(
            "{:12}  {:7}  {:domain$}  {:rule$}  {:>10}  DESCRIPTOR\n",
            "TIME (UTC)", "VERDICT", "DOMAIN", "RULE", "LEFT"
        )
    }

    /// The rows of one request. Only the first one has a time.
    pub(super) fn rows(&mut self, record: &Record<'_>) -> String {
        let mut rows = String::new();
        if record.lost > 0 {
            let (dim, plain) = self.paint(DIM);
            let _ = writeln!(rows, "{dim}{:12}  not shown: {}{plain}", "", counted(record.lost, "request"));
        }
        let domain = printable(&record.domain);
        self.domain_width = width(self.domain_width, &domain);
        let domain_width = self.domain_width;
        for (at, descriptor) in record.descriptors.iter().enumerate() {
            let time = if at == 0 { time_of_day(&record.time) } else { String::new() };
            let verdict = match (&*record.verdict, descriptor.verdict.as_deref()) {
                ("error", _) => "error",
                (_, Some("over")) => "over",
                (_, Some("shadow")) => "shadow",
                (_, Some(_)) => "ok",
                (_, None) => "-",
            };
            let rule = match (&descriptor.rule, &descriptor.limit) {
                (Some(rule), _) => printable(rule),
                (None, Some(limit)) => {
                    let unit = printable(&limit.unit);
                    let per = limit.unit_multiplier.map_or(unit.clone(), |units| counted(units, &unit));
                    format!("({} per {per})", limit.requests)
                }
                (None, None) => "-".to_owned(),
            };
            self.rule_width = width(self.rule_width, &rule);
            let rule_width = self.rule_width;
            let left = descriptor.remaining.map_or_else(|| "-".to_owned(), |left| left.to_string());
            let (colour, plain) = match verdict {
                "over" | "error" => self.paint(RED),
                "shadow" => self.paint(YELLOW),
                "-" => self.paint(DIM),
                _ => ("", ""),
            };
            let _ = writeln!(
                rows,
                "{time:12}  {colour}{verdict:7}{plain}  {domain:domain_width$}  {rule:rule_width$}  {left:>10}  {}{}",
                printable(&spell_pairs(&descriptor.entries)),
                asked(descriptor, record.hits)
                    + &descriptor.factor.map(|factor| format!("  (factor {factor})")).unwrap_or_default()
            );
        }
        rows
    }

    const fn paint(&self, colour: &'static str) -> (&'static str, &'static str) {
        if self.is_coloured { (colour, PLAIN) } else { ("", "") }
    }
}

fn width(before: usize, text: &str) -> usize {
    before.max(text.chars().count().min(WIDTH_MAX))
}

/// The time of the day of an instant in RFC 3339, with milliseconds.
fn time_of_day(time: &str) -> String {
    printable(&time.chars().skip(DATE_BYTES).take(TIME_BYTES).collect::<String>())
}

/// The hits of a descriptor and what they do; empty for one plain hit.
fn asked(descriptor: &Descriptor<'_>, hits_of_request: u32) -> String {
    let hits = descriptor.hits.unwrap_or(hits_of_request);
    match (descriptor.settle, descriptor.held, descriptor.given_back) {
        (true, _, None) => return format!("  (settles with {hits})"),
        (true, _, Some(back)) => return format!("  (settles with {hits}, {back} given back)"),
        (false, Some(held), _) => return format!("  (holds {held})"),
        (false, None, _) => {}
    }
    match (descriptor.look, descriptor.refund, hits) {
        (true, ..) => "  (look)".to_owned(),
        (false, true, hits) => format!("  (refund of {hits})"),
        (false, false, 1) => String::new(),
        (false, false, hits) => format!("  (x{hits})"),
    }
}

#[cfg(test)]
mod tests {
    use weir_api::tap::TapLine;

    use super::super::read;
    use super::*;

    fn shown(lines: &[&str], is_coloured: bool) -> String {
        let mut table = Table::new(is_coloured);
        let mut text = table.heading();
        for line in lines {
            let Some(TapLine::Record(record)) = read(line) else { panic!("no record: {line}") };
            text.push_str(&table.rows(&record));
        }
        text
    }

    #[test]
    fn a_request_is_a_row_for_each_descriptor() {
        let lines = [
            r#"{"time":"2026-12-01T10:00:00.123456Z","domain":"shop","hits":1,"descriptors":[{"entries":[["user","~3f9c01d2a47b"],["path","/a,b"]],"rule":"user|path","verdict":"ok","remaining":7}],"verdict":"ok"}"#,
            r#"{"time":"2026-12-01T10:00:01.000000Z","domain":"a-longer-domain","hits":3,"descriptors":[{"entries":[["user","ann"]],"rule":"user","verdict":"over","remaining":0},{"entries":[["x","y"]],"hits":2,"refund":true},{"entries":[["z",""]],"look":true,"limit":{"requests":5,"unit":"minute"},"verdict":"shadow","remaining":0},{"entries":[["z","1"]],"limit":{"requests":1,"unit":"second","unit_multiplier":30},"verdict":"ok","remaining":0}],"verdict":"over","lost":12}"#,
            r#"{"time":"2026-12-01T10:00:02.000000Z","domain":"shop","hits":1,"descriptors":[{"entries":[["user","bob"]],"rule":"user"}],"verdict":"error"}"#,
        ];
        insta::assert_snapshot!(shown(&lines, false), @r"
        TIME (UTC)    VERDICT  DOMAIN    RULE                    LEFT  DESCRIPTOR
        10:00:00.123  ok       shop      user|path                  7  user=~3f9c01d2a47b,path=/a\,b
                      not shown: 12 requests
        10:00:01.000  over     a-longer-domain  user                       0  user=ann  (x3)
                      -        a-longer-domain  -                          -  x=y  (refund of 2)
                      shadow   a-longer-domain  (5 per minute)             0  z=  (look)
                      ok       a-longer-domain  (1 per 30 seconds)           0  z=1  (x3)
        10:00:02.000  error    shop             user                         -  user=bob
        ");
        let coloured = shown(&lines, true);
        assert!(coloured.contains("\u{1b}[31mover   \u{1b}[0m") && coloured.contains("\u{1b}[33mshadow"));
    }

    #[test]
    fn holds_and_settles_show_their_hits() {
        for (members, expected) in [
            (r#""held":40"#, "(holds 40)"),
            (r#""settle":true,"given_back":33"#, "(settles with 7, 33 given back)"),
            (r#""settle":true"#, "(settles with 7)"),
            (r#""held":210,"factor":30"#, "(holds 210)  (factor 30)"),
        ] {
            let line = format!(
                r#"{{"time":"2026-12-01T10:00:00Z","domain":"ai","hits":7,"descriptors":[{{"entries":[["user","ann"]],{members}}}],"verdict":"ok"}}"#
            );
            assert!(shown(&[&line], false).ends_with(&format!("  user=ann  {expected}\n")), "{members}");
        }
    }
}
