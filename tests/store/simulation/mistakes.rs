//! Mistakes in files of traffic: each is named with its place, and with what was probably meant.

use std::path::Path;

use weir_policies::traffic_file::{KEYS_MAX, SOURCES_MAX, parse};

/// What is wrong with a text, without the name of the file.
fn of(text: &str) -> String {
    let problems = parse(&"t".into(), text, Path::new("")).expect_err(text);
    let problems: Vec<String> = problems.list().iter().map(|problem| problem.to_string()[2..].to_owned()).collect();
    problems.join("\n")
}

#[test]
fn mistakes_in_sources() {
    for (source, expected) in [
        ("{ask: a=1}", "3:11: no rate: write how many requests per how long, such as 10/s"),
        ("{rate: 1/s}", "3:11: no descriptors: write ask, such as user=u<n>"),
        ("{aks: a=1, rate: 1/s}", "3:12: unknown key \"aks\" in a source, did you mean \"ask\"?"),
        ("{ask: a, rate: 1/s}", "3:17: descriptor \"a\": \"a\" has no \"=\": write KEY=VALUE"),
        ("{ask: a=1, rate: 1}", "3:28: rate \"1\": no rate: write 1/s or 1/min"),
        (
            "{ask: a=1, rate: 0.5/s}",
            "3:28: rate \"0.5/s\": \"0.5\" is not a whole number from 0 to 999999999999999: write less often, such as 30/min",
        ),
        ("{ask: a=1, rate: 0/s}", "3:28: a source sends at least one request"),
        ("{ask: a=1, rate: 1/s, keys: 3}", "3:39: no <n> in ask: it stands for the number of the key, as in user=u<n>"),
        ("{ask: a=<n>, rate: 1/s, keys: 0}", &format!("3:41: keys must be from 1 to {KEYS_MAX}, not 0")),
        ("{ask: a=1, rate: 1/s, arrivals: poison}", "3:43: no arrivals \"poison\", did you mean \"poisson\"?"),
        ("{ask: a=1, rate: 1/s, arrivals: bursts}", "3:11: bursts need their size: burst: 20"),
        ("{ask: a=1, rate: 1/s, arrivals: bursts, burst: 0}", "3:58: a burst has at least one request"),
        ("{ask: a=1, rate: 1/s, burst: 3}", "3:40: burst is for arrivals: bursts"),
        ("{ask: a=1, rate: 1/s, from: 2m}", "3:39: the source ends before it begins"),
        ("{ask: a=1, rate: 1/s, until: 2m}", "3:40: until is past the duration of the traffic"),
        ("{ask: a=1, rate: 1/s, used: 3}", "3:33: used needs lasts: when the request ends, and settles"),
        ("{ask: a=1, rate: 1/s, lasts: 1s, used: 9..3}", "3:50: used \"9..3\": its first number is the larger one"),
        (
            "{ask: a=1, rate: 1/s, lasts: 1s, used: \">= 3\"}",
            "3:50: used \">= 3\": write 37 or 10..500, at most 4294967295",
        ),
        ("{ask: a=1, rate: 1/s, duration: 3s}", "3:33: duration belongs in a file of traffic, not in a source"),
    ] {
        let got = of(&format!("duration: 1m\ndomain: d\nsources: [{source}]"));
        assert_eq!(got, expected, "{source}");
    }
}

#[test]
fn mistakes_in_files() {
    let source = "{ask: a=1, rate: 1/s}";
    for (text, expected) in [
        (String::new(), "1:1: empty: a file of traffic has sources or an access_log".to_owned()),
        (
            format!("domain: d\nsources: [{source}]"),
            "1:1: no duration: write how long the sources send, such as 10m".into(),
        ),
        (
            format!("duration: 0s\nsources: [{source}]"),
            "1:11: duration must be longer than 0 and at most 366 days".into(),
        ),
        ("duration: 1m\nsources: []".into(), "2:10: 0 sources: a file of traffic has 1 to 100".into()),
        ("duration: 1m".into(), "1:1: a file of traffic has sources or an access_log".into()),
        (
            format!("duration: 1m\nsources: [{source}]"),
            "2:11: no domain: give it here or at the top of the file".into(),
        ),
        (
            format!("duratoin: 1m\ndomain: d\nsources: [{source}]"),
            "1:1: unknown key \"duratoin\" in a file of traffic, did you mean \"duration\"?".into(),
        ),
        (
            format!("duration: 1m\ndomain: d\nsources: [{source}]\naccess_log: {{file: a}}"),
            "4:1: sources and access_log: give one of them".into(),
        ),
        (
            "duration: 1m\ndomain: d\naccess_log: {file: a, time: t, ask: a=<b>}".into(),
            "1:1: duration has no effect with access_log: the log has its own times".into(),
        ),
        (
            "domain: d\naccess_log: {time: t, ask: a=<b>}".into(),
            "2:13: no file: write the path of the log, relative to this file's directory".into(),
        ),
        (
            "domain: d\naccess_log: {file: a, ask: a=<b>}".into(),
            "2:13: no time: write the field of the log that has it, such as start_time".into(),
        ),
        (
            "domain: d\naccess_log: {file: a, time: t}".into(),
            "2:13: no descriptors: write ask, such as user=<x-user>".into(),
        ),
        (
            "access_log: {file: a, time: t, ask: a=<b>}".into(),
            "1:13: no domain: give it here or at the top of the file".into(),
        ),
        (
            "domain: d\naccess_log: {file: a, time: t, time_format: unix, ask: a=<b>}".into(),
            "2:45: no time_format \"unix\", did you mean \"unix_s\"?".into(),
        ),
        (
            "domain: d\naccess_log: {file: a, time: t, hits: 1.5, ask: a=<b>}".into(),
            "2:38: hits must be a whole number from 0 to 4294967295, not \"1.5\"".into(),
        ),
        (
            "domain: d\naccess_log: {file: a, time: t, hits: tokens, look: true, ask: a=<b>}".into(),
            "2:52: a look has no hits: leave hits out".into(),
        ),
        (
            format!("duration: 1m\nstart: 2099-12-31T23:59:30Z\ndomain: d\nsources: [{source}]"),
            "1:11: the traffic goes on past the year 2100".into(),
        ),
        (
            format!("duration: 1m\nstart: 2040-03-25T02:30[Europe/Berlin]\ndomain: d\nsources: [{source}]"),
            "2:8: start \"2040-03-25T02:30[Europe/Berlin]\": 2040-03-25T02:30:00 does not exist in Europe/Berlin, because clocks go \
             forward: next to it are 2040-03-25T01:59:59[Europe/Berlin] and 2040-03-25T03:00:00[Europe/Berlin]"
                .into(),
        ),
        (
            format!("duration: 1m\nsettings: {{redis.url: x}}\ndomain: d\nsources: [{source}]"),
            "2:12: the setting redis.url changes no answer of a test".into(),
        ),
    ] {
        let got = of(&text);
        assert!(got == expected || got.starts_with(&format!("{expected}\n")), "{text}\n{got}");
    }
    let misspelled = of(&format!("duration: 1m\ndomian: d\nsources: [{source}, {source}]"));
    assert_eq!(misspelled, "2:1: unknown key \"domian\" in a file of traffic, did you mean \"domain\"?");
}

#[test]
fn what_a_file_can_make_us_hold_is_bounded() {
    let sources = vec!["{ask: a=1, rate: 1/s}"; SOURCES_MAX + 1].join(", ");
    let got = of(&format!("duration: 1m\ndomain: d\nsources: [{sources}]"));
    assert_eq!(got, format!("3:10: {} sources: a file of traffic has 1 to {SOURCES_MAX}", SOURCES_MAX + 1));

    let half = KEYS_MAX / 2 + 1;
    let source = format!("{{ask: a=<n>, rate: 1/s, keys: {half}}}");
    let got = of(&format!("duration: 1m\ndomain: d\nsources: [{source}, {source}]"));
    assert!(got.contains(&format!("the sources up to here have {} keys: at most {KEYS_MAX}", 2 * half)), "{got}");

    assert!(of("duration: 367d\ndomain: d\nsources: [{ask: a=1, rate: 1/d}]").contains("at most 366 days"));
}
