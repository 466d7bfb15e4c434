//! Mistakes in files of tests: each is named with its place, and with what was probably meant.

use std::path::Path;

use weir_policies::test_file::parse;

/// What is wrong with the steps of a case, without the name of the file.
fn of_steps(steps: &str) -> String {
    of(&format!("domain: shop\ncases:\n- name: c\n  steps:\n  - {{ask: user=ann}}\n  - {steps}\n"))
}

fn of(text: &str) -> String {
    let name = "t".into();
    let problems = parse(&name, text, Path::new("")).expect_err(text);
    let problems: Vec<String> = problems.list().iter().map(|problem| problem.to_string()[2..].to_owned()).collect();
    problems.join("\n")
}

#[test]
fn mistakes_in_steps() {
    for (steps, expected) in [
        (
            "{ask: user=ann,path=/, expect: ok}",
            "6:20: unknown key \"path=/\" in a step: quote a descriptor that has a comma",
        ),
        ("{aks: user=ann}", "6:6: unknown key \"aks\" in a step, did you mean \"ask\"?"),
        ("{ask: user=ann, wait: 1s}", "6:5: ask and wait are steps of their own"),
        ("{ask: user}", "6:11: descriptor \"user\": \"user\" has no \"=\": write KEY=VALUE"),
        ("{ask: [{descriptor: a=1, entries: []}]}", "6:30: descriptor and entries: give one of them"),
        (
            "{ask: [{entries: [{key: a, vaule: b}]}]}",
            "6:32: unknown key \"vaule\" in an entry, did you mean \"value\"?",
        ),
        ("{ask: [{hits: 1}]}", "6:12: a descriptor has neither descriptor nor entries"),
        ("{ask: a=1, hits: 0}", "6:22: 0 hits: write look: true for a request that costs nothing"),
        ("{ask: a=1, hits: 2, look: true}", "6:31: a look has no hits, and gives none back"),
        ("{ask: a=1, limit: 3/1500ms}", "6:23: the window of a limit of the request is whole seconds"),
        ("{ask: a=1, limit: 3/hours}", "6:23: rate \"3/hours\": no unit \"hours\", did you mean \"hour\"?"),
        ("{ask: a=1, times: 0}", "6:23: times must be from 1 to 1000000, not 0"),
        ("{ask: a=1, used: 3}", "6:16: used needs lasts: when the request ends, and settles; or settle"),
        ("{ask: a=1, settle: first}", "6:24: no step before has the receipt \"first\""),
        ("{ask: a=1, settle: own, receipt: own}", "6:24: no step before has the receipt \"own\""),
        ("{ask: a=1, settle: none, lasts: 1s}", "6:30: lasts beside settle: a request that settles holds nothing"),
        ("{ask: a=1, receipt: none}", "6:25: none is the word for no receipt"),
        ("{wait: 1s, receipt: a}", "6:16: receipt has no effect in a step with wait"),
        ("{ask: a=1, every: 1s}", "6:5: every and for belong together: every: 1s, for: 10m"),
        ("{ask: a=1, every: 2s, for: 1s}", "6:23: every must be longer than 0, and at most as long as for"),
        ("{ask: a=1, every: 2s, for: 3s}", "6:32: for must be a whole number of times every"),
        ("{ask: a=1, state: kept}", "6:16: state has no effect in a step with ask"),
        ("{wait: 1}", "6:12: wait \"1\": has no unit: write 1ms or 1s"),
        ("{wait: 1s, expect: ok}", "6:16: expect has no effect in a step with wait"),
        (
            "{at: noon}",
            "6:10: at \"noon\": not an instant: write 2040-03-25T00:30:00Z, 2040-03-25T00:30[Europe/Berlin] or 2040-03-25",
        ),
        ("{at: \"2039-01-01T00:00:00Z\"}", "6:10: this instant is past: the clock of a case only goes on"),
        ("{swap: other, state: lost}", "6:26: no state \"lost\": it is one of kept, forgotten"),
        ("{swap: other, expect: ok}", "6:27: expect of a swap can be refused, and nothing else"),
        ("{rows: [a]}", "6:12: rows must be the path of a file of rows, or its lines after a |"),
        ("{rows: absent.csv}", "6:12: absent.csv: No such file or directory (os error 2)"),
        ("{rows: /dev/null}", "6:12: /dev/null: not a regular file"),
        ("{rows: \"domain,tenant\\nshop,acme\\n\"}", "6:6: rows:1:1: no column plan, and no column limits"),
        ("{rows: \"domain,tenant,plan\\n,acme,gold\\n\"}", "6:6: rows:2:1: no domain"),
        (
            "{rows: \"domain,tenant,plan\\nshop,acme,gold\\nshop,acme,gold\\n\"}",
            "6:6: rows:3:6: the descriptor of line 2 once more",
        ),
        ("{rows: a, expect: ok}", "6:15: expect has no effect in a step with rows"),
        ("{swap: [a]}", "6:12: swap must be a path, or texts by names of files, not a list"),
    ] {
        assert_eq!(of_steps(steps), expected, "{steps}");
    }
}

#[test]
fn mistakes_in_expectations() {
    for (expect, expected) in [
        ("okay", "no answer \"okay\": it is one of ok, over; or a mapping"),
        ("{answr: ok}", "unknown key \"answr\" in what is expected, did you mean \"answer\"?"),
        ("{answer: denied}", "no answer \"denied\": it is one of ok, over"),
        ("{remaining: few}", "remaining \"few\": write 3, <= 3, >= 3 or 1..3"),
        ("{remaining: 3..1}", "remaining \"3..1\": its first number is the larger one"),
        ("{retry_after: 5}", "retry_after \"5\": has no unit: write 5ms or 5s; or <= 10s, >= 10s, 5s..10s"),
        ("{limit: 3}", "limit \"3\": no rate: write 3/s or 3/min"),
        ("{algorithm: token}", "algorithm \"token\": no algorithm, did you mean \"token_bucket\"?"),
        ("{headers: RateLimit}", "headers must be names and values, not \"RateLimit\""),
        ("{headers: {a: 1, A: 2}}", "\"A\" appears twice"),
        ("{statuses: [ok, ok]}", "2 statuses, but the request has 1 descriptor"),
        ("{statuses: [ok], rule: a}", "rule belongs in the items of statuses"),
        ("{error: x, answer: ok}", "a request that gets an error gets no answer"),
        ("{times: 3}", "times belongs in a step, not in what is expected"),
    ] {
        let problem = of_steps(&format!("{{ask: a=1, expect: {expect}}}"));
        let message = problem.split_once(": ").map_or("", |(_, message)| message);
        assert_eq!(message, expected, "{expect}: {problem}");
    }
    let several = of_steps("{ask: [a=1, b=2], expect: {rule: a}}");
    assert_eq!(several, "6:32: with 2 descriptors, write rule for each one: statuses: [{rule: ...}, ...]");
}

#[test]
fn mistakes_around_cases() {
    let steps = "steps: [{ask: a=1}]";
    for (text, expected) in [
        ("".to_owned(), "1:1: empty: a file of tests has cases"),
        ("cases: []".to_owned(), "1:8: no cases: a file of tests has at least one"),
        ("case: []".to_owned(), "1:1: unknown key \"case\" in a file of tests, did you mean \"cases\"?"),
        (
            "cases: [{name: c, domain: d, steps: [{wait: 1s}]}]".to_owned(),
            "1:9: the case sends no request: it tests nothing",
        ),
        (
            format!("domian: d\ncases: [{{name: c, {steps}}}]"),
            "1:1: unknown key \"domian\" in a file of tests, did you mean \"domain\"?",
        ),
        (
            "cases: [{name: c, domain: d, setps: [{ask: a=1}]}]".to_owned(),
            "1:30: unknown key \"setps\" in a case, did you mean \"steps\"?",
        ),
        ("cases: [{name: c, domain: d}]".to_owned(), "1:9: the case sends no request: it tests nothing"),
        (format!("cases: [{{domain: d, {steps}}}]"), "1:9: a case has no name"),
        (
            format!("cases: [{{name: c, {steps}}}]"),
            "1:27: no domain: give it here, in the case or at the top of the file",
        ),
        (
            format!("domain: d\ncases:\n- {{name: c, {steps}}}\n- {{name: c, {steps}}}"),
            "4:3: a case \"c\" appears twice, first in line 3",
        ),
        (
            format!("domain: d\nsettings: {{chargin: atomic}}\ncases: [{{name: c, {steps}}}]"),
            "2:12: no setting \"chargin\", did you mean \"charging\"?",
        ),
        (
            format!("domain: d\nsettings: {{redis: {{url: x}}}}\ncases: [{{name: c, {steps}}}]"),
            "2:20: the setting redis.url changes no answer of a test",
        ),
        (
            format!("domain: d\nsettings: {{redis.url: x}}\ncases: [{{name: c, {steps}}}]"),
            "2:12: the setting redis.url changes no answer of a test",
        ),
        (
            format!("domain: d\nsettings: {{response: {{ietf_headers: maybe}}}}\ncases: [{{name: c, {steps}}}]"),
            "2:23: response.ietf_headers \"maybe\": must be off or on",
        ),
        ("cases: [\n".to_owned(), "not valid YAML"),
    ] {
        let problem = of(&text);
        assert!(problem.contains(expected), "{text}\nexpected {expected}\ngot {problem}");
        // What is misspelled is not reported as missing too.
        assert!(!expected.contains("did you mean") || problem == expected, "{text}\n{problem}");
    }
}
