//! Reports as lines, for files and for other programs.
//!
//! Each line is a record. Fields are separated by tabs, and tabs in fields are escaped. The first field is the server's
//! time in seconds since 1970, the second the kind of record. docs/admin.md has the columns.

use std::io::Write;

use tokio::time::{MissedTickBehavior, interval};

use super::report::{self, Leases, Report, ShownCaller};
use super::{By, TopArguments, TopError, write_now};
use crate::token::Token;

/// Writes a report after each interval.
pub(super) async fn run(
    arguments: &TopArguments,
    token: &Token,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<(), TopError> {
    let server = &arguments.server.server;
    // Rates need an earlier report to compare with.
    report::ask(server, token, "").await?;
    let mut ticks = interval(arguments.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match report::ask(server, token, "").await {
            Ok(mut report) => {
                arguments.sort.sort(&mut report);
                write_now(&lines(&report, arguments.by), out)?;
            }
            Err(error) if arguments.once => return Err(error.into()),
            // A failure to write errors does not matter.
            Err(error) => {
                let _ = write_now(&format!("weir: {error}; trying again\n"), errors);
            }
        }
        if arguments.once {
            return Ok(());
        }
    }
}

fn lines(report: &Report, by: By) -> String {
    let mut text = String::new();
    let time = report.now_ms / 1_000;
    let Report { state, store, policies: [domains, rules, problems], requests: [ok, over, failed], .. } = report;
    let overrides = report.overrides;
    let Leases { keys, charged, used } = report.leases;
    let Report { local, nobody, times_us, uptime_s, .. } = report;
    let [p50, p99] = times_us.map(|us| us.map_or_else(|| "-".to_owned(), |us| us.to_string()));
    let answers = if store.answered { "answers" } else { "silent" };
    text.push_str(&format!(
        "{time}\tserver\t{state}\t{ok}\t{over}\t{failed}\t{}\t{answers}\t{}\t{}\t{domains}\t{rules}\t{problems}\t{overrides}\t{keys}\t{charged}\t{used}\t{local}\t{nobody}\t{p50}\t{p99}\t{uptime_s}\n",
        store.name, store.circuit, store.queue.unwrap_or_default()
    ));
    if by == By::Caller {
        for ShownCaller { name, requests, refused } in &report.callers {
            text.push_str(&format!("{time}\tcaller\t{refused}\t{requests}\t{name}\n"));
        }
        return text;
    }
    for limit in &report.limits {
        let name = &limit.name;
        text.push_str(&format!(
            "{time}\tlimit\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
            limit.denied,
            limit.hits,
            limit.denials,
            name.domain,
            name.rule,
            name.limit,
            role(limit.is_shadow)
        ));
    }
    for key in &report.keys {
        let (name, [at_least, at_most]) = (&key.name, key.denials);
        text.push_str(&format!(
            "{time}\tkey\t{at_least}\t{at_most}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
            key.last_ms / 1_000,
            name.domain,
            name.rule,
            name.limit,
            key.descriptor,
            role(key.is_shadow),
            if key.row.is_empty() { "-" } else { &key.row }
        ));
    }
    text
}

/// Whether a limit denies, or only counts.
const fn role(is_shadow: bool) -> &'static str {
    if is_shadow { "shadow" } else { "enforced" }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::super::view::Sort;
    use super::*;

    #[test]
    fn a_report_is_a_line_for_each_record() {
        let mut report = sample("a\tnn", 2_000);
        Sort::Denied.sort(&mut report);
        insta::assert_snapshot!(lines(&report, By::Limit).replace('\t', " | ").replace(" \n", "\n"), @r"
        1800000123 | server | ready | 1510.0 | 77.5 | 0.0 | redis | answers | closed | 3 | 2 | 4 | 0 | 2 | 1 | 700 | 580 | 12.0 | 1.5 | 100 | 1500 | 97500
        1800000123 | limit | 77.5 | 151.0 | 1234 | shop | user | per-user | enforced
        1800000123 | limit | 0.5 | 4.5 | 0 | blog | a\tnn | f60s | enforced
        1800000123 | limit | 0.0 | 0.0 | 7 | blog | idle | f60s | shadow
        1800000123 | limit | 0.0 | 2000.0 | 0 | shop | tenant | f3600s | enforced
        1800000123 | key | 1200 | 1234 | 0 | shop | user | per-user | user=a\tnn | enforced | -
        1800000123 | key | 34 | 34 | 65 | shop | user | per-user | user=bob | enforced | plan a\tnn
        1800000123 | key | 7 | 7 | 223 | blog | idle | f60s | idle= | shadow | -
        ");
    }

    #[test]
    fn callers_are_lines_of_their_own() {
        let mut report = sample("a\tnn", 2_000);
        Sort::Denied.sort(&mut report);
        insta::assert_snapshot!(lines(&report, By::Caller).replace('\t', " | ").lines().skip(1).collect::<Vec<_>>().join("\n"), @r"
        1800000123 | caller | 7.5 | 1507.5 | a\tnn
        1800000123 | caller | 0.0 | 10.0 | idle-team
        1800000123 | caller | 0.0 | 0.0 | (others)
        ");
    }
}
