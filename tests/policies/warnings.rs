//! What `weir check` warns of besides what a load finds, and what it leaves alone. Below it the same against a matcher of the tests' own
//! (hidden.rs).

mod hidden;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use weir_cli::check::{self, Failed};
use weir_lab::testing::Strictness;
use weir_policies::{Code, Dialect, Loaded, check_warnings, check_warnings_with, load_dir, parse, parse_with};

fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The warnings of a domain with these descriptors.
fn warnings(descriptors: &str) -> Vec<String> {
    of_text(&format!("domain: shop\ndescriptors:\n{descriptors}"))
}

fn of_text(text: &str) -> Vec<String> {
    let mut loaded = parse(&[("p", text)]).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert_eq!(loaded.warnings.count(), 0, "a load does not look for them: {}", loaded.warnings);
    check_warnings(&mut loaded);
    shown(&loaded)
}

fn shown(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.list().iter().map(|warning| warning.to_string().replacen(": warning: ", " ", 1)).collect()
}

/// Each code with a policy that has it, where it is, and what is told besides the advice.
const FOUND: &[(Code, &str, &str, &str)] = &[
    (
        Code::ReplacesNothing,
        "  - {key: a, rate_limit: {rate: 1/s, name: basic}}\n  - {key: b, rate_limit: {rate: 2/s, replaces: [{name: basik}]}}\n",
        "4:5",
        "replaces \"basik\", and no limit of the domain has that name, did you mean \"basic\"?",
    ),
    (
        Code::ReplacesNothing,
        "  - {key: a, rate_limit: {rate: 1/s, replaces: [{name: basic}]}}\n",
        "3:5",
        "replaces \"basic\", and no limit of the domain has that name",
    ),
    (
        Code::ReplacesNothing,
        "  - {key: a, rate_limit: {unlimited: true, name: free}} # a name of this leaves nothing out\n  \
           - {key: b, rate_limit: {rate: 1/s, replaces: [{name: free}]}}\n",
        "4:5",
        "replaces \"free\", and no limit of the domain has that name",
    ),
    (
        Code::NeverMet,
        "  - {key: a, value: /x/*, rate_limit: 1/s}\n  - {key: a, value: /x/*/y, rate_limit: 2/s}\n",
        "4:5",
        "never met, because the wildcard at p:3:5 comes before it and matches all of its values",
    ),
    (
        Code::NeverMet,
        "  - {key: a, rate_limit: 1/s}\n  - {key: a, value: '**', rate_limit: 2/s}\n",
        "3:5",
        "never met, because the wildcard at p:4:5 takes all values before the key alone",
    ),
    (
        Code::NeverMet,
        "  - {key: a, regex: /v1/.*, rate_limit: 1/s}\n  - {key: a, value: /v1/pay*, rate_limit: 2/s}\n",
        "4:5",
        "only values with control characters match it, because the regular expression at p:3:5 comes before it and matches all of its values",
    ),
    (
        Code::NeverMet,
        "  - {key: a, value: /v1*, rate_limit: 1/s}\n  - {key: a, value: /v2*, rate_limit: 1/s}\n  - {key: a, regex: '/v[12]', rate_limit: 2/s}\n",
        "5:5",
        "never met, because the wildcard at p:3:5 and the wildcard at p:4:5 take all of its values",
    ),
    (
        Code::NeverMet,
        "  - {key: a, regex: 'gold|silver', rate_limit: 1/s}\n  - {key: a, values: [gold, silver], rate_limit: 2/s}\n",
        "3:5",
        "never met, because the list at p:4:5 takes all of its values",
    ),
    (
        Code::NeverMet,
        "  - {key: a, regex: '10\\.0\\.0\\.1[0-9]', rate_limit: 1/s}\n  - {key: a, cidr: 10.0.0.0/8, rate_limit: 2/s}\n",
        "3:5",
        "never met, because the networks at p:4:5 take all of its values",
    ),
    (
        Code::MatchesNothing,
        "  - {key: a, regex: '[^\\s\\S]x', rate_limit: 1/s}\n",
        "3:5",
        "no value matches the regular expression",
    ),
    (
        Code::HidesBelow,
        "  - key: plan\n    descriptors: [{key: op, rate_limit: 10/min}]\n  - {key: plan, value: gold, rate_limit: 1000/h}\n",
        "5:5",
        "(plan=gold, op=x) has no limit here, because the limit at p:4:19 is below the key alone at p:3:5",
    ),
    (
        Code::HidesBelow,
        "  - {key: path, value: /v*, rate_limit: 1/s}\n  - key: path\n    value: '*/pay'\n    descriptors: [{key: op, value: buy, descriptors: [{key: user, rate_limit: 1/s}]}]\n",
        "3:5",
        "(path=/v/pay, op=buy, user=x) has no limit here, because the limit at p:6:55 is below the wildcard at p:4:5",
    ),
    (
        Code::HidesBelow,
        "  - {key: team, weigh: {entry: model, by: {small: 1, large: 30}, default: 9}, rate_limit: 9/h}\n  - {key: team, value: search, rate_limit: 9/h}\n",
        "4:5",
        "(team=search, model=large) has no limit here, because only the rule at p:3:5 weighs by model",
    ),
    (
        Code::HidesBelow,
        "  - {key: team, rate_limit: 9/h}\n  - {key: team, value: search, weigh: {entry: model, by: {large: 30}, default: 9}, rate_limit: 9/h}\n",
        "3:5",
        "(team=x, model=large) has no limit here, because only the rule at p:4:5 weighs by model",
    ),
    (
        Code::HidesBelow,
        "  - key: org\n    descriptors:\n      - {key: team, weigh: {entry: model, by: {large: 30}, default: 9}, rate_limit: 9/h}\n  - key: org\n    value: acme\n    descriptors:\n      - {key: team, weigh: {entry: size, by: {large: 30}, default: 9}, rate_limit: 9/h}\n",
        "6:5",
        "(org=acme, team=x, model=large) has no limit here, because only the rule at p:5:9 weighs by model",
    ),
    (
        Code::OuterBlank,
        "  - {key: a, weigh: {entry: model, by: {'small ': 1}, default: 2}, rate_limit: 1/s}\n",
        "3:5",
        "the value of weigh \"small \" begins or ends with a blank",
    ),
    (
        Code::OuterBlank,
        "  - {key: a, weigh: {entry: ' model', by: {small: 1}, default: 2}, rate_limit: 1/s}\n",
        "3:5",
        "the entry of weigh \" model\" begins or ends with a blank",
    ),
    (
        Code::AlikeKey,
        "  - {key: a, weigh: {entry: model, by: {small: 1}, default: 2}, rate_limit: 1/s}\n  - {key: b, weigh: {entry: modle, by: {small: 1}, default: 2}, rate_limit: 1/s}\n",
        "4:5",
        "the key \"modle\" is spelled almost as \"model\", at p:3:5",
    ),
    (
        Code::AlikeKey,
        "  - {key: a, weigh: {entry: model, by: {gpt-large: 1}, default: 2}, rate_limit: 1/s}\n  - {key: b, weigh: {entry: model, by: {GPT-large: 1}, default: 2}, rate_limit: 1/s}\n",
        "4:5",
        "the value of weigh \"GPT-large\" is spelled almost as \"gpt-large\", at p:3:5",
    ),
    (
        Code::AlikeKey,
        "  - {key: a, weigh: {entry: model, by: {gpt-large: 3, gpt-lagre: 4}, default: 2}, rate_limit: 1/s}\n",
        "3:5",
        "the value of weigh \"gpt-large\" is spelled almost as \"gpt-lagre\", at p:3:5",
    ),
    (
        Code::SmallAmount,
        "  - {key: a, rate_limit: {rate: 5000/day, amount: {in: usd, scale: 1000000}}}\n",
        "3:5",
        "limit 1 is less than one unit: 0.005 usd",
    ),
    (
        Code::LooksLikePrefix,
        "  - {key: path, regex: /v1/, rate_limit: 1/s}\n",
        "3:5",
        "the whole value must match, so \"/v1/\" matches and \"/v1/x\" does not",
    ),
    (
        Code::LooksLikePrefix,
        "  - {key: path, regex: ^/v1, rate_limit: 1/s}\n",
        "3:5",
        "the whole value must match, so \"/v1\" matches and \"/v1/x\" does not",
    ),
    (Code::OuterBlank, "  - {key: 'user ', rate_limit: 1/s}\n", "3:5", "the key \"user \" begins or ends with a blank"),
    (
        Code::OuterBlank,
        "  - {key: plan, values: [gold, ' silver'], rate_limit: 1/s}\n",
        "3:5",
        "the value \" silver\" begins or ends with a blank",
    ),
    (
        Code::OddCharacter,
        "  - {key: a, value: “gold”, rate_limit: 1/s}\n",
        "3:5",
        "the value \"“gold”\" has curly quotes",
    ),
    (
        Code::OddCharacter,
        "  - {key: \"user\u{a0}\", rate_limit: 1/s}\n",
        "3:5",
        "the key \"user\\u{a0}\" has a no-break space",
    ),
    (
        Code::SlowBurst,
        "  - {key: a, rate_limits: [9/s, {rate: 1/h, algorithm: token_bucket, burst: 1000}]}\n",
        "3:5",
        "limit 2 takes 41d16h to refill its burst of 1000",
    ),
    (
        Code::KeyWithValue,
        "  - {key: user=bob, rate_limit: 1/s}\n",
        "3:5",
        "the whole text \"user=bob\" is the key, and not \"user\" with the value \"bob\"",
    ),
    (
        Code::StarInKey,
        "  - {key: pa*, rate_limit: 1/s}\n",
        "3:5",
        "the * in the key \"pa*\" is compared as it is, and is a pattern only in envoyproxy/ratelimit",
    ),
    (
        Code::TermGap,
        "  - key: a\n    rate_limits:\n      - {rate: 1/s, name: a, until: 2099-01-01}\n      - {rate: 2/s, name: b, from: 2099-02-01}\n",
        "3:5",
        "no limit applies from 2099-01-01T00:00:00Z until 2099-02-01T00:00:00Z",
    ),
    (
        Code::TermGap,
        "  - key: a\n    rate_limits:\n      - {rate: 1/s, name: a, during: \"daily 08:00-19:59 Europe/Berlin\"}\n      - {rate: 2/s, name: b, during: \"daily 20:00-08:00 Europe/Berlin\"}\n",
        "3:5",
        "no limit applies from Mon 19:59 until Mon 20:00 Europe/Berlin",
    ),
    (
        Code::TermGap,
        "  - key: a\n    rate_limits:\n      - {rate: 1/s, name: a, during: \"Mon-Sat 00:00-24:00\"}\n      - {rate: 2/s, name: b, during: \"Sun 00:00-23:30\"}\n",
        "3:5",
        "no limit applies from Sun 23:30 until Mon 00:00 UTC",
    ),
    (
        Code::AllowsNothing,
        "  - key: a\n    rate_limit: 1/s\n    allow_warnings:\n      no_reason: staff needs it\n",
        "6:7",
        "there is no warning no_reason here",
    ),
    (
        Code::NoLimit,
        "  - {key: a, rate_limit: 1/s}\n  - {key: a, value: x, descriptors: [{key: b}]}\n",
        "4:5",
        "no limit here and below, so this limits nothing; without it the key alone at p:3:5 limits a=x",
    ),
    (
        Code::NoLimit,
        "  - {key: a, rate_limit: 1/s}\n  - {key: a, value: x}\n  - {key: a, value: '*x', rate_limit: 1/s}\n",
        "4:5",
        "no limit here and below, so this limits nothing; without it the wildcard at p:5:5 limits a=x",
    ),
    (
        Code::NoLimit,
        "  - {key: a, value: x}\n  # staff\n  - {key: a, value: '*x', rate_limit: {unlimited: true}}\n  - {key: a, rate_limit: 1/s}\n",
        "3:5",
        "no limit here and below, so this limits nothing",
    ),
    (
        Code::NoLimit,
        "  - key: a\n    rate_limit: 1/s\n    descriptors:\n      - {key: b}\n",
        "6:9",
        "no limit here and below, so this limits nothing",
    ),
    (
        Code::LooksLikeRegex,
        "  - {key: path, value: '/v[0-9]+/pay', rate_limit: 1/s}\n",
        "3:5",
        "\"/v[0-9]+/pay\" is compared as text, in which only a * matches any text",
    ),
    (
        Code::LooksLikeRegex,
        "  - {key: path, values: [/pay, ^/buy], rate_limit: 1/s}\n",
        "3:5",
        "\"^/buy\" is compared as text, in which only a * matches any text",
    ),
    (
        Code::LooksLikeNetwork,
        "  - {key: client, values: [a, 10.0.0.0/8], rate_limit: 1/s}\n",
        "3:5",
        "\"10.0.0.0/8\" is compared as text, and no address equals it",
    ),
    (
        Code::NeverDenies,
        "  - {key: a, rate_limits: [10/s, 100_000/h]}\n",
        "3:5",
        "limit 2 never denies, because limit 1 of the rule admits no more in the same time",
    ),
    (
        Code::NeverLeased,
        "  - {key: a, rate_limits: [{rate: 9000/s, lease: 100ms}, 900_000/h]}\n",
        "3:5",
        "the lease of limit 1 admits no request, because limit 2 has no lease",
    ),
    (
        Code::NeverLeased,
        "  - key: a # tried out\n    rate_limits: [{rate: 1000/s, name: a, shadow: true}, {rate: 9000/min, lease: 100ms}]\n",
        "3:5",
        "the lease of limit 2 admits no request, because limit 1 has no lease",
    ),
    (
        Code::LeaseTooLong,
        "  - {key: a, rate_limit: {rate: 9000/s, algorithm: sliding_window, precision: 50ms, lease: 100ms}}\n",
        "3:5",
        "limit 1 has a lease of 100ms, and each lease ends with its precision of 50ms",
    ),
    (
        Code::LeaseTooLong,
        "  - {key: a, rate_limits: [{rate: 9000/min, lease: 10ms}, {rate: 900/100ms, lease: 1s}]}\n",
        "3:5",
        "limit 2 has a lease of 1s, and each lease ends with its window of 100ms",
    ),
    (
        Code::SamePlan,
        "  - {key: a, rows: {default: free}, rate_limits: [{rate: 9/s, plans: {gold: 9/s}}, {rate: 900/h, plans: {lead: 90/h}}]}\n",
        "3:5",
        "the plan \"gold\" has the numbers of the default plan \"free\"",
    ),
    (Code::NoReason, "  - {key: a, rate_limit: {unlimited: true}}\n", "3:5", "unlimited, and no comment says why"),
    (
        Code::NoReason,
        "  # another descriptor\n  - {key: a, rate_limit: 1/s}\n  - key: b\n    shadow_mode: true\n    rate_limit: {rate: 1/s, name: b}\n",
        "5:5",
        "in shadow mode, and no comment says why",
    ),
    (
        Code::NoReason,
        "  - key: a\n    rate_limits: [10/s, {rate: 5/s, name: tight, shadow: true}]\n",
        "3:5",
        "limit \"tight\" is on trial, and no comment says why",
    ),
    (
        Code::NoReason,
        "  - {key: a, rate_limit: {rate: 5/s, shadow: true}}\n",
        "3:5",
        "limit 1 is on trial, and no comment says why",
    ),
    (
        Code::AlikeKey,
        "  - {key: tenant, value: a, rate_limit: 1/s}\n  - {key: tennant, value: b, rate_limit: 1/s}\n",
        "4:5",
        "the key \"tennant\" is spelled almost as \"tenant\", at p:3:5",
    ),
    (
        Code::AlikeKey,
        "  - {key: user-id, rate_limit: 1/s}\n  - key: a\n    descriptors: [{key: user_id, rate_limit: 1/s}]\n  \
           - {key: user_id, rate_limit: 1/s}\n",
        "3:5",
        "the key \"user-id\" is spelled almost as \"user_id\", at p:5:19",
    ),
];

#[test]
fn each_probable_mistake_is_found_at_its_place() {
    for (code, descriptors, place, what) in FOUND {
        let expected = format!("p:{place} {what}: {} [{}]", code.advice(), code.name());
        assert_eq!(warnings(descriptors), [expected], "{descriptors}");
    }
}

#[test]
fn a_domain_that_is_spelled_as_another_is_found() {
    let domain = |name: &str| format!("domain: {name}\ndescriptors: [{{key: a, rate_limit: 1/s}}]");
    let (one, other, third) = (domain("checkout"), domain("chekout"), domain("shop"));
    let mut loaded = parse(&[("a", &one), ("b", &other), ("c", &third)]).unwrap();
    check_warnings(&mut loaded);
    let advice = Code::AlikeDomain.advice();
    let expected =
        format!("b:1:9 the domain \"chekout\" is spelled almost as \"checkout\", at a:1:9: {advice} [alike_domain]");
    assert_eq!(shown(&loaded), [expected]);
}

/// Only the settings show whether Envoy delays requests.
#[test]
fn a_leaky_bucket_is_a_warning_for_settings_without_the_header_of_its_delay() {
    let text = |allow: &str| {
        format!(
            "domain: d\ndescriptors:\n  - {{key: a, {allow}rate_limit: {{rate: 5/s, algorithm: leaky_bucket, burst: 10}}}}\n"
        )
    };
    let allowed = text("allow_warnings: {no_delay_header: the caller waits}, ");
    let found = |text: &str, delay_header, compatible| {
        let mut loaded =
            parse_with(&[("p", text)], Dialect { compatible, merge_domains: false, ..Dialect::default() }).unwrap();
        check_warnings_with(&mut loaded, delay_header);
        shown(&loaded)
    };
    let advice = Code::NoDelayHeader.advice();
    assert_eq!(
        found(&text(""), Some(false), false),
        [format!(
            "p:3:5 limit 1 is a leaky_bucket, and without response.delay_header Envoy delays no request: {advice} [no_delay_header]"
        )]
    );
    for (text, delay_header, compatible) in [
        (text(""), Some(true), false),
        (text(""), None, false),
        (text(""), Some(false), true),
        (allowed.clone(), Some(false), false),
        (allowed.clone(), None, false),
    ] {
        assert_eq!(found(&text, delay_header, compatible), Vec::<String>::new(), "{text}");
    }
    assert_eq!(found(&allowed, Some(true), false).len(), 1, "the warning is not there");
}

/// Files of envoyproxy/ratelimit and of Envoy Gateway have these keys with another intent.
#[test]
fn files_of_envoyproxy_ratelimit_have_only_the_warnings_of_all_files() {
    let found = |text: &str| {
        let mut loaded =
            parse_with(&[("p", text)], Dialect { compatible: true, merge_domains: false, ..Dialect::default() })
                .unwrap();
        check_warnings(&mut loaded);
        shown(&loaded).into_iter().map(|text| text.rsplit_once('[').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    for (text, expected) in [
        ("domain: d\n", "no_descriptors]"),
        ("domain: d\ndescriptors:\n", "no_descriptors]"),
        ("domain: d\ndescriptors: [{key: “a”, rate_limit: {unit: second, requests_per_unit: 1}}]\n", "odd_character]"),
    ] {
        assert_eq!(found(text), [expected], "{text}");
    }
    for limit in
        ["value: '', rate_limit: {unit: month, requests_per_unit: 9}", "value: , rate_limit: 9/m", "rate_limit: 5/week"]
    {
        assert_eq!(found(&format!("domain: d\ndescriptors: [{{key: a, {limit}}}]\n")), [""; 0], "{limit}");
    }
}

#[test]
fn each_code_of_weir_check_has_a_case_here() {
    let of_a_load = 15;
    for code in &Code::ALL[of_a_load..] {
        let is_elsewhere = matches!(code, Code::AlikeDomain | Code::NoDelayHeader | Code::UnmetOverlay);
        let is_here = is_elsewhere || FOUND.iter().any(|(found, ..)| found == code);
        assert!(is_here, "{}", code.name());
    }
}

/// Each kind of warning can be allowed where it stands, and the policies are then without one.
#[test]
fn a_warning_that_is_allowed_where_it_stands_is_silent_and_one_that_is_gone_is_a_warning() {
    let allow = |code: Code| format!("allow_warnings: {{{}: it is meant so}}", code.name());
    let mut allowed = BTreeSet::new();
    for (code, descriptors, place, _) in FOUND.iter().filter(|(code, ..)| *code != Code::AllowsNothing) {
        // In the line and column of the warning, a descriptor begins.
        let (line, column) = place.split_once(':').unwrap();
        let (line, column): (usize, usize) = (line.parse().unwrap(), column.parse().unwrap());
        let mut lines: Vec<String> = descriptors.lines().map(str::to_owned).collect();
        let line = &mut lines[line - 3];
        let rest = line.split_off(column - 1);
        match rest.strip_prefix('{') {
            Some(rest) => line.push_str(&format!("{{{}, {rest}", allow(*code))),
            None => line.push_str(&format!("{}\n{}{rest}", allow(*code), " ".repeat(column - 1))),
        }
        assert_eq!(warnings(&format!("{}\n", lines.join("\n"))), Vec::<String>::new(), "{lines:?}");
        allowed.insert(code.name());
    }
    // Those of a domain, and those that a load finds.
    for text in [
        "domain: ' d'\nallow_warnings: {outer_blank: the caller sends it}\ndescriptors: [{key: a, rate_limit: 1/s}]",
        "domain: d\nallow_warnings: {no_descriptors: filled later}\n",
        "domain: d\ndescriptors: []\n",
        "domain: d\ndescriptors: [{key: a, value: '', rate_limit: 1/s, allow_warnings: {empty_value: a tool writes it}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: , allow_warnings: {empty_rate_limit: later}}]",
        "domain: d\ndescriptors: [{key: a, shadow_mode: true, allow_warnings: {no_effect: later}, descriptors: [{key: b, rate_limit: 1/s}]}]",
        "domain: d\ndescriptors:\n- key: a\n  descriptors: [{key: b, rate_limit: 1/s}]\n  \
         rate_limit: {rate: 1/s, until: 2020-01-01}\n  allow_warnings: {ended: kept for the report}",
    ] {
        assert_eq!(of_text(text), Vec::<String>::new(), "{text}");
    }
    assert!(allowed.len() >= 15, "{allowed:?}");
}

#[test]
fn a_warning_is_allowed_in_its_place_only() {
    let found = warnings(
        "  - key: a\n    allow_warnings: {no_limit: of the parent}\n    rate_limit: 1/s\n    descriptors: [{key: b}]\n",
    );
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("p:4:22 there is no warning no_limit here") && found[1].starts_with("p:6:19 no limit")
    );
}

#[test]
fn a_reason_is_demanded_and_unknown_warnings_are_refused_with_a_suggestion() {
    for (allow, expected) in [
        ("{no_limt: x}", "no warning \"no_limt\" in allow_warnings, did you mean \"no_limit\"?"),
        ("{no_limit: }", "no_limit in allow_warnings has no reason: write why it is not a mistake"),
        ("{no_limit: ' '}", "no_limit in allow_warnings has no reason: write why it is not a mistake"),
        ("{no_limit: [a]}", "no_limit in allow_warnings has no reason: write why it is not a mistake"),
        ("[no_limit]", "allow_warnings must be a mapping of warnings and reasons, not a list"),
        ("{allows_nothing: x}", "no warning \"allows_nothing\" in allow_warnings"),
    ] {
        for text in [
            format!("domain: d\ndescriptors: [{{key: a, allow_warnings: {allow}}}]"),
            format!("domain: d\nallow_warnings: {allow}\ndescriptors: []"),
        ] {
            let problems = parse(&[("p", &text)]).unwrap_err().to_string();
            assert!(problems.contains(expected), "{problems}");
        }
    }
}

#[test]
fn policies_as_envoyproxy_ratelimit_reads_them_have_keys_that_are_patterns() {
    let of = |descriptors: &str| {
        let text = format!("domain: d\ndescriptors:\n{descriptors}");
        let mut loaded =
            parse_with(&[("p", &text)], Dialect { compatible: true, merge_domains: false, ..Dialect::default() })
                .unwrap();
        check_warnings(&mut loaded);
        shown(&loaded)
    };
    let never = Code::NeverMet.advice();
    assert_eq!(of("  - {key: pa*, rate_limit: 1/s}\n"), Vec::<String>::new());
    assert_eq!(
        of("  - {key: pa*, rate_limit: 1/s}\n  - {key: path*, rate_limit: 1/s}\n  - {key: user, rate_limit: 1/s}\n"),
        [format!(
            "p:4:5 never met, because the key with a * at p:3:5 comes before it and matches all of its values: {never} [never_met]"
        )]
    );
    assert_eq!(
        of(
            "  - {key: us*, rate_limit: 1/s}\n  - {key: user, rate_limit: 1/s}\n  - {key: user, value: x, rate_limit: 1/s}\n"
        ),
        [format!(
            "p:4:5 never met, because the value at p:5:5 and the key with a * at p:3:5 take all values before the key alone: {never} [never_met]"
        )]
    );
}

#[test]
fn what_is_meant_so_is_left_alone() {
    for descriptors in [
        // The longer wildcard first, wildcards of different keys, and exact values after a wildcard.
        "  - {key: a, value: /x/y/*, rate_limit: 1/s}\n  - {key: a, value: /x/*, rate_limit: 1/s}\n  - {key: a, value: /x/1, rate_limit: 1/s}\n",
        "  - {key: a, value: '*', rate_limit: 1/s}\n  - {key: b, value: x*, rate_limit: 1/s}\n  - {key: b, rate_limit: 1/s}\n",
        "  - {key: a, value: '*', rate_limit: 1/s}\n  - {key: a, cidr: 10.0.0.0/8, rate_limit: 1/s}\n  - {key: a, values: [x, y], rate_limit: 1/s}\n",
        "  - {key: a, value: '*x', rate_limit: 1/s}\n  - {key: a, regex: x+y?, rate_limit: 1/s}\n  - {key: a, rate_limit: 1/s}\n",
        // A level on the way to a limit.
        "  - {key: a, descriptors: [{key: b, rate_limit: 1/s}]}\n",
        "  - {key: masked_remote_address, value: 10.0.0.0/8, rate_limit: 1/s}\n",
        "  - {key: path, value: '/files/*/download', rate_limit: 1/s}\n  - {key: host, value: '*.example.com', rate_limit: 1/s}\n",
        // A peak and a volume.
        "  - {key: a, rate_limits: [50/s, 100_000/day]}\n",
        "  - {key: a, rate_limits: [{rate: 50/s, algorithm: gcra, burst: 100}, 200_000/day]}\n",
        // Rows can have numbers under which the second limit denies first.
        "  - {key: a, rows: {default: free}, rate_limits: [{rate: 10/s, plans: {gold: 90/s}}, 100_000/h]}\n",
        // Comments in every place.
        "  # closed on Sundays\n  - {key: a, rate_limit: {unlimited: true}}\n",
        "  - {key: a, rate_limit: {unlimited: true}} # staff\n",
        "  - key: a\n    rate_limit:\n      unlimited: true # staff\n",
        "  - key: a\n    shadow_mode: true # until March\n    rate_limit: 1/s\n    descriptors: [{key: b, rate_limit: 1/s}]\n",
        // Buckets that refill within a day, and a burst below the hits of a window.
        "  - {key: a, rate_limits: [{rate: 1/h, algorithm: gcra, burst: 24}, {rate: 100/30d, algorithm: token_bucket, burst: 50}]}\n",
        // Names that differ by what they mean.
        "  - {key: user, rate_limit: 1/s}\n  - {key: users, rate_limit: 1/s}\n  - {key: path1, rate_limit: 1/s}\n  - {key: path2, rate_limit: 1/s}\n",
        "  - {key: a, rate_limit: {rate: 1/s, name: x}}\n  - {key: b, rate_limit: {rate: 1/s, replaces: [{name: x}]}}\n",
        // A value that a wildcard before it would take too.
        "  - {key: a, value: '*', rate_limit: 1/s}\n  - {key: a, value: x, rate_limit: 1/s}\n",
        // Patterns that cross, an IPv6 address that a network may have, and values that are plainly whole.
        "  - {key: a, value: /api/*, rate_limit: 1/s}\n  - {key: a, regex: '.*/export', rate_limit: 1/s}\n  - {key: a, rate_limit: 1/s}\n",
        "  - {key: a, cidr: '2001:db8::/32', rate_limit: 1/s}\n  - {key: a, value: '2001:db8:*', rate_limit: 1/s}\n",
        "  - {key: a, regex: '^/v1$', rate_limit: 1/s}\n  - {key: a, regex: '/v[0-9]+/pay', rate_limit: 1/s}\n",
        // The same limits below both, and one that is unlimited on purpose.
        "  - key: plan\n    descriptors: [{key: op, rate_limit: 1/s}]\n  - key: plan\n    value: gold\n    descriptors: [{key: op, rate_limit: 2/s}]\n",
        "  - key: plan\n    descriptors: [{key: op, rate_limit: 1/s}]\n  - {key: plan, value: gold, rate_limit: {unlimited: true}} # staff\n",
        // A rule that weighs too, one with its own limits for the entry, and one that is unlimited on purpose.
        "  - {key: t, weigh: {entry: m, by: {a: 2}, default: 1}, rate_limit: 9/h}\n  - {key: t, value: x, weigh: {entry: m, by: {a: 3}, default: 1}, rate_limit: 9/h}\n",
        "  - {key: t, weigh: {entry: m, by: {a: 2}, default: 1}, rate_limit: 9/h}\n  - {key: t, value: x, rate_limit: 9/h, descriptors: [{key: m, rate_limit: 9/h}]}\n",
        "  - {key: t, weigh: {entry: m, by: {a: 2}, default: 1}, rate_limit: 9/h}\n  - {key: t, value: x, rate_limit: {unlimited: true}} # staff\n",
        // Values of different entries, and one unit.
        "  - {key: t, weigh: {entry: model, by: {large: 2}, default: 1}, rate_limit: 9/h}\n  - {key: u, weigh: {entry: size, by: {lagre: 2}, default: 1}, rate_limit: {rate: 100/h, amount: {in: usd, scale: 100}}}\n",
        // Leases that some requests can use: the limit without one has a term, or is left out by another rule.
        "  - {key: a, rate_limits: [{rate: 9000/s, lease: 1s}, {rate: 9000/min, from: 2099-01-01}]}\n",
        "  - {key: a, rate_limits: [{rate: 9000/s, lease: 100ms}, {rate: 9000/min, name: x}]}\n  - {key: b, rate_limit: {rate: 1/s, replaces: [{name: x}]}}\n",
        "  - {key: a, rate_limits: [{rate: 9000/s, algorithm: sliding_window, precision: 50ms, lease: 50ms}, {rate: 9000/min, lease: 1s}]}\n",
        // Terms that meet, and a limit that always applies beside those that do not.
        "  - {key: a, rate_limits: [{rate: 1/s, name: a, until: 2099-01-01}, {rate: 2/s, name: b, from: 2099-01-01}]}\n",
        "  - {key: a, rate_limits: [{rate: 1/s, name: a, until: 2099-01-01}, {rate: 2/s, name: b, from: 2099-02-01}, 60/h]}\n",
    ] {
        assert_eq!(warnings(descriptors), Vec::<String>::new(), "{descriptors}");
    }
}

/// Which of two limits never denies, by limits of which the first is always the stricter one where there is one.
#[test]
fn limits_that_never_deny_are_told_from_those_that_can() {
    let never = "limit 2 never denies, because limit 1 of the rule";
    for (first, second, is_never) in [
        ("10/s", "600/min", true),
        ("10/s", "599/min", false),
        ("0/s", "1/h", true),
        ("0/s", "0/h", false),
        // Windows that do not fill each other meet one more.
        ("{rate: 10/s, anchor: first_hit}", "610/min", true),
        ("{rate: 10/s, anchor: first_hit}", "609/min", false),
        ("10/7s", "100/min", true),
        ("10/7s", "99/min", false),
        ("{rate: 10/min, algorithm: sliding_window_counter}", "20/min", true),
        ("{rate: 10/min, algorithm: sliding_window_log}", "19/min", false),
        // A hit counts for up to a sub-bucket longer.
        (
            "{rate: 10/s, algorithm: sliding_window_log}",
            "{rate: 620/min, algorithm: sliding_window, precision: 1s}",
            true,
        ),
        (
            "{rate: 10/s, algorithm: sliding_window_log}",
            "{rate: 619/min, algorithm: sliding_window, precision: 1s}",
            false,
        ),
        ("{rate: 10/s, algorithm: sliding_window_log}", "{rate: 1210/min, algorithm: sliding_window_counter}", true),
        ("{rate: 10/s, algorithm: sliding_window_log}", "{rate: 1209/min, algorithm: sliding_window_counter}", false),
        ("{rate: 10/s, algorithm: gcra, burst: 5}", "605/min", true),
        ("{rate: 10/s, algorithm: gcra, burst: 5}", "604/min", false),
        ("{rate: 10/min, algorithm: token_bucket, burst: 5, refill: interval}", "25/min", true),
        ("{rate: 10/min, algorithm: token_bucket, burst: 5, refill: interval}", "24/min", false),
        // Without a bound on what is charged, or on the time.
        ("{rate: 10/s, post_paid: true}", "1000000/min", false),
        ("{rate: 10/s, shadow: true}", "1000000/min", false),
        ("{rate: 10/s, until: 2040-12-01}", "1000000/min", false),
        ("10/s", "{rate: 1000000/min, until: 2040-12-01}", true),
        ("10/s", "{rate: 1000000/min, drain: true}", false),
        ("10/s", "{rate: 1000000000/month, calendar: true}", false),
        ("10/s", "{rate: 1000000/s, algorithm: gcra}", false),
        ("{rate: 10/s, name: a}", "{rate: 10/s, name: b}", false),
        ("{rate: 10/s, name: a}", "{rate: 11/s, name: b}", true),
    ] {
        let found = warnings(&format!("  # on purpose\n  - {{key: a, rate_limits: [{first}, {second}]}}\n"));
        assert_eq!(found.iter().any(|text| text.contains(never)), is_never, "{first} {second}: {found:?}");
        assert_eq!(found.len(), usize::from(is_never), "{first} {second}: {found:?}");
    }
}

#[test]
fn a_stricter_limit_that_is_not_in_each_request_does_not_count() {
    let limits = "rate_limits: [{rate: 10/s, name: peak}, 100_000/h]";
    assert_eq!(warnings(&format!("  - {{key: a, {limits}}}\n")).len(), 1);
    let replaced =
        format!("  - {{key: a, {limits}}}\n  - {{key: b, rate_limit: {{rate: 1/s, replaces: [{{name: peak}}]}}}}\n");
    assert_eq!(warnings(&replaced), Vec::<String>::new());
    for mark in ["shadow_mode: true", "quota_mode: true"] {
        let marked = format!("  - {{key: a, {mark}, {limits}}} # on trial\n");
        assert_eq!(warnings(&marked), Vec::<String>::new(), "{mark}");
    }
    let independent = format!("domain: d\ncharging: independent\ndescriptors: [{{key: a, {limits}}}]");
    assert_eq!(of_text(&independent), Vec::<String>::new());
}

#[test]
fn every_example_is_without_a_warning() {
    let mut open = vec![at_root("examples")];
    let mut checked = 0;
    while let Some(directory) = open.pop() {
        let below = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        open.extend(below.filter(|path| path.is_dir()));
        let Ok(mut loaded) = load_dir(&directory) else { continue };
        check_warnings(&mut loaded);
        assert_eq!(shown(&loaded), Vec::<String>::new(), "{}", directory.display());
        checked += 1;
    }
    assert!(checked >= 15, "only {checked} directories");
}

/// What envoyproxy/ratelimit was recorded with has no comments. All else that is found there is what a case is about.
#[test]
fn the_recorded_policies_have_the_mistakes_that_they_show() {
    let (mut checked, mut odd) = (0, Vec::new());
    for group in ["core.json", "charging.json", "modes.json", "policies.json", "stats.json"] {
        let path = at_root("tests/data/parity").join(group);
        let cases: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        for case in cases["cases"].as_array().unwrap() {
            let policies = case["policies"].as_object().unwrap();
            let files: Vec<_> = policies.iter().map(|(name, text)| (name.as_str(), text.as_str().unwrap())).collect();
            let merge_domains = case["env"].get("MERGE_DOMAIN_CONFIG").is_some();
            let mut loaded =
                parse_with(&files, Dialect { compatible: true, merge_domains, ..Dialect::default() }).unwrap();
            let before = loaded.warnings.count();
            check_warnings(&mut loaded);
            let added = loaded.warnings.list()[before..].iter().filter(|warning| warning.code != Code::NoReason);
            odd.extend(added.map(|warning| format!("{}: {}", case["name"].as_str().unwrap(), warning.code.name())));
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} cases");
    let meant = [
        "depth_must_equal: hides_below",
        "depth_must_equal: hides_below",
        "no_backtrack: hides_below",
        "no_backtrack: hides_below",
        "wildcards: never_met",
        "replaces: replaces_nothing",
        "rlconfig: hides_below",
        "rlconfig: hides_below",
        "accepted_oddities: no_limit",
        "accepted_oddities: no_limit",
    ];
    assert_eq!(odd, meant);
}

#[test]
fn strictness_makes_warnings_errors() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("shop.yaml");
    fs::write(&file, "domain: shop\ndescriptors: [{key: a}]\n").unwrap();
    for path in [directory.path(), &file] {
        let mut out = Vec::new();
        check::run(path, Dialect::default(), Strictness::Lenient, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let place = format!("{}:2:15: warning: no limit here and below", file.display());
        assert!(out.contains(&place) && out.contains(Code::NoLimit.advice()) && out.contains("[no_limit]"), "{out}");
        let strict = check::run(path, Dialect::default(), Strictness::Strict, &mut Vec::new());
        assert!(matches!(strict, Err(Failed::Warnings(1))), "{strict:?}");
    }
}

#[test]
fn warnings_past_the_bound_are_counted() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for i in 0..3_000 {
        writeln!(text, "- {{key: a, value: v{i}}}").unwrap();
    }
    let mut loaded = parse(&[("p", &text)]).unwrap();
    check_warnings(&mut loaded);
    assert_eq!((loaded.warnings.list().len(), loaded.warnings.count()), (1_000, 3_000));
}

#[test]
fn the_page_has_every_code_with_its_advice() {
    let page = fs::read_to_string(at_root("docs/policies.md")).unwrap();
    for code in Code::ALL {
        let (start, end) = (format!("| `{}` | ", code.name()), format!(" | {} |", code.advice()));
        let rows = page.lines().filter(|line| line.starts_with(&start) && line.ends_with(&end)).count();
        assert_eq!(rows, 1, "docs/policies.md has no row that begins with {start:?} and ends with {end:?}");
    }
}
