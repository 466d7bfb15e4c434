//! Fuzz targets: each passes arbitrary bytes to a parser of outside input, and panics if the parser breaks a promise.
//!
//! `cargo fuzz` builds them with the programs of fuzz/. The tests below run the same functions on the seeds in
//! fuzz/corpus, and on mutations of these. Compiled only for tests and cargo-fuzz.

#[cfg(test)]
mod memory;

use std::path::Path;

use prost::Message as _;
use weir_grpc::fuzz::received;
pub use weir_http::fuzz::{override_body, row_body, tokens};
pub use weir_http2::fuzz::frames;
use weir_lab::simulation::traffic::{Traffic, TrafficError};
use weir_limiter::HOLDS_MAX;
pub use weir_limiter::overrides::fuzz as overrides;
pub use weir_limiter::rows::fuzz as rows;
pub use weir_policies::row_file::fuzz as row_lines;
use weir_policies::{OverlayFile, PROBLEMS_MAX, Reading, Sources, test_file, traffic_file};
use weir_protobuf::FIELDS_MAX;
use weir_rls::proto::RateLimitRequest;
use weir_rls::request::Request;
use weir_rls::{json, lenient, receipts, spelling};
use weir_settings::{Layer, Settings};
pub use weir_store::redis::{map, replies};
pub use weir_telemetry::mapper::fuzz as mapper;
pub use weir_xds::discovery;

/// How many requests of traffic are read.
const REQUESTS_MAX: usize = 100;

/// The message of a gRPC call. The first byte is the length of the pieces in which it arrives.
/// Panics when the generated decoder reads a different request.
pub fn message(data: &[u8]) {
    let Some(bytes) = received(data) else { return };
    let mut texts = Vec::new();
    let read = lenient::decode(&bytes, &mut texts);
    match (RateLimitRequest::decode(&*bytes), read) {
        (Ok(mut generated), read) => {
            let entries = generated.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
            let texts = entries.flat_map(|entry| [&mut entry.key, &mut entry.value]);
            for text in texts.chain([&mut generated.domain]) {
                *text = spelling::respelt(std::mem::take(text));
            }
            let view = Request::of(&generated);
            let Ok(read) = read else {
                // A field has two bytes at least.
                assert!(bytes.len() > 2 * FIELDS_MAX, "a message is read");
                return;
            };
            let is_whole =
                |kept: usize, left_out: u32, sent: usize| if left_out == 0 { kept == sent } else { kept < sent };
            assert!(is_whole(read.descriptors.len(), read.descriptors_left_out, view.descriptors.len()));
            for (read, generated) in read.descriptors.iter().zip(&view.descriptors) {
                assert!(is_whole(read.entries.len(), read.entries_left_out, generated.entries.len()));
                assert!(generated.entries.starts_with(&read.entries));
                // Nothing after the first omitted part is read.
                if read.entries_left_out == 0 {
                    let but_entries = (read.limit, read.hits_addend, read.is_negative_hits);
                    assert_eq!(but_entries, (generated.limit, generated.hits_addend, generated.is_negative_hits));
                }
            }
            if read.descriptors_left_out == 0 {
                assert_eq!((read.domain, read.hits_addend), (view.domain, view.hits_addend));
            }
        }
        // Texts that are not UTF-8 are replaced, which gives a message. Omitted parts are not compared.
        (Err(_), Ok(read)) => {
            let again = read.message();
            assert_eq!(RateLimitRequest::decode(&*again.encode_to_vec()), Ok(again));
        }
        (Err(_), Err(_)) => {}
    }
}

/// The body of `POST /json`.
/// Panics when an error is too long or has control characters or no place, when a request is read from invalid JSON,
/// or when a different spelling of the JSON gives a different request.
pub fn json(data: &[u8]) {
    match json::parse_request(data) {
        Ok(request) => {
            let value: serde_json::Value = serde_json::from_slice(data).expect("only JSON is a request");
            assert_eq!(json::parse_request(value.to_string().as_bytes()).as_ref(), Ok(&request));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(
                error.line() >= 1 && text.len() <= json::ERROR_BYTES_MAX + " at line  column ".len() + 40,
                "{text}"
            );
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}

/// The value of an entry that returns a receipt.
/// Panics when formatting and reading a receipt changes it, or when it exceeds a bound.
pub fn receipts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some(holds) = receipts::parse(&text) else { return };
    assert!((1..=HOLDS_MAX).contains(&holds.len()));
    assert!(holds.iter().all(|hold| hold.receipt.hits > 0));
    let written = receipts::text(&holds);
    assert!(written.len() <= receipts::TEXT_BYTES_MAX);
    assert_eq!(receipts::parse(&written), Some(holds));
}

/// A policy file.
/// Panics when it is refused without a problem, or with a problem at a place outside of the file.
pub fn policies(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Err(problems) = weir_policies::parse(&[("fuzz.yaml", &text)]) else { return };
    assert!(problems.count() > 0 && (1..=PROBLEMS_MAX).contains(&problems.list().len()));
    // YAML has line breaks that are not line breaks elsewhere.
    let lines = text.chars().filter(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')).count() + 2;
    for problem in problems.list() {
        let line = problem.position.map_or(1, |position| position.line);
        assert!(usize::try_from(line).is_ok_and(|line| line <= lines), "{problem} of {lines} lines");
        assert!(!problem.message.is_empty());
    }
}

/// A file of overlays and, after a line of `---`, a policy file.
/// Panics when it is refused without a problem.
pub fn overlays(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (overlays, policy) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let loaded = OverlayFile::of("fuzz.overlay.yaml", overlays).and_then(|overlay| {
        let reading = Reading { overlay: Some(overlay), ..Reading::default() };
        weir_policies::parse_with(&[("fuzz.yaml", policy)], reading)
    });
    if let Err(problems) = loaded {
        assert!(problems.count() > 0 && (1..=PROBLEMS_MAX).contains(&problems.list().len()));
        assert!(problems.list().iter().all(|problem| problem.position.is_none_or(|at| at.of_graft().is_none())));
    }
}

/// A file of callers.
/// Panics when it is refused without a problem, or when a name belongs to a caller that does not have it.
pub fn callers(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match weir_policies::parse_callers("fuzz.callers.yaml", &text, None) {
        Ok(callers) => {
            for name in ["spiffe://mesh/ns/a/../b", "spiffe://mesh//b", "*.mesh", "envoy.mesh\0", ""] {
                assert!(callers.find(&[name.into()], "").is_err(), "{name:?}");
            }
        }
        Err(problems) => assert!(problems.count() > 0 && (1..=PROBLEMS_MAX).contains(&problems.list().len())),
    }
}

/// A file of tests.
/// Panics when it is refused without a problem.
pub fn tests(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(problems) = test_file::parse(&"fuzz.test.yaml".into(), &text, Path::new("")) {
        assert!(problems.count() > 0 && !problems.list().is_empty());
    }
}

/// A file of traffic, and its first requests.
/// Panics when it is refused without a problem, or when its requests are not in order of time.
pub fn traffic(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match traffic_file::parse(&"fuzz.traffic.yaml".into(), &text, Path::new("")) {
        Ok(file) => in_order(Traffic::of(file)),
        Err(problems) => assert!(problems.count() > 0 && !problems.list().is_empty()),
    }
}

/// A record of `weir tap`.
/// Panics when its requests are not in order of time.
pub fn records(data: &[u8]) {
    let path = std::env::temp_dir().join(format!("weir-fuzz-{}.jsonl", std::process::id()));
    std::fs::write(&path, data).expect("a temporary file");
    in_order(Traffic::open(&path));
    std::fs::remove_file(&path).expect("the temporary file");
}

fn in_order(traffic: Result<Traffic, TrafficError>) {
    let Ok(mut traffic) = traffic else { return };
    let mut last = 0;
    for _ in 0..REQUESTS_MAX {
        let Ok(Some(request)) = traffic.next() else { return };
        assert!(request.time >= last, "{} us after {last} us", request.time);
        last = request.time;
    }
}

/// A server's answer about the source of its policies.
/// Panics when it is refused without a problem.
pub fn sources(data: &[u8]) {
    let Ok(sources) = serde_json::from_slice::<Sources>(data) else { return };
    if let Err(problems) = weir_policies::load_sources(sources) {
        assert!(problems.count() > 0 && (1..=PROBLEMS_MAX).contains(&problems.list().len()));
    }
}

/// A settings file and, after a line of `---`, assignments as for `--set`.
/// Panics when it is refused without a problem.
pub fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (file, assignments) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let mut flags = Layer::default();
    assignments.lines().for_each(|line| flags.set(line));
    if let Err(problems) = Settings::load(&[Layer::yaml("fuzz.yaml", file), flags]) {
        assert!(problems.iter().next().is_some() && !problems.to_string().is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::path::Path;

    /// Mutated inputs for each target; `WEIR_FUZZ_INPUTS` sets another number.
    const INPUTS: u64 = 1_500;
    const INPUT_BYTES_MAX: usize = 4 * 1_024;
    const CHANGES_MAX: usize = 6;

    fn run(name: &str, target: impl Fn(&[u8])) {
        let seeds = seeds(name);
        let check = |input: &[u8]| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
                eprintln!("put this into fuzz/corpus/{name}: {:?}", String::from_utf8_lossy(input));
                eprintln!("its bytes: {input:?}");
                resume_unwind(panic);
            }
        };
        check(&[]);
        seeds.iter().for_each(|seed| check(seed));
        let inputs = std::env::var("WEIR_FUZZ_INPUTS").map_or(INPUTS, |number| number.parse().expect("a number"));
        let mut dice = Dice(0x5EED);
        for _ in 0..inputs {
            check(&dice.input(&seeds));
        }
    }

    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        let mut files: Vec<_> = fs::read_dir(&folder).expect("a corpus").map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 2, "few seeds in {}", folder.display());
        files.iter().map(|file| fs::read(file).unwrap()).collect()
    }

    /// A small generator (splitmix64): the same inputs in every run.
    struct Dice(u64);

    impl Dice {
        /// A number below `end`, which is at least 1.
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            usize::try_from((mixed ^ (mixed >> 31)) >> 16).unwrap() % end
        }

        /// A part of a text, at most 64 bytes.
        fn part<'a>(&mut self, text: &'a [u8]) -> &'a [u8] {
            let from = self.below(text.len() + 1);
            let length = self.below((text.len() - from).min(64) + 1);
            &text[from..from + length]
        }

        fn input(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
            const BYTES: &[u8] = b"\0\x01\x7f\x80\xff\r\n\t :,-+*$#&[]{}\"'\\09.eu<>|!";
            let mut input = seeds[self.below(seeds.len())].clone();
            for _ in 0..=self.below(CHANGES_MAX) {
                let at = self.below(input.len() + 1);
                let end = at + self.part(&input[at..]).len();
                match self.below(6) {
                    0 if at < input.len() => input[at] ^= 1 << self.below(8),
                    1 if at < input.len() => input[at] = BYTES[self.below(BYTES.len())],
                    2 => drop(input.drain(at..end)),
                    3 => {
                        let again = input[at..end].to_vec();
                        input.splice(at..at, again);
                    }
                    4 => {
                        let other = &seeds[self.below(seeds.len())];
                        let part = self.part(other);
                        input.splice(at..end, part.iter().copied());
                    }
                    _ => input.insert(at, BYTES[self.below(BYTES.len())]),
                }
            }
            input.truncate(INPUT_BYTES_MAX);
            input
        }
    }

    #[test]
    fn frames() {
        run("frames", super::frames);
    }

    #[test]
    fn message() {
        run("message", super::message);
    }

    #[test]
    fn json() {
        run("json", super::json);
    }

    #[test]
    fn receipts() {
        run("receipts", super::receipts);
    }

    #[test]
    fn policies() {
        run("policies", super::policies);
    }

    #[test]
    fn overlays() {
        run("overlays", super::overlays);
    }

    #[test]
    fn callers() {
        run("callers", super::callers);
    }

    #[test]
    fn tests_of_policies() {
        run("tests", super::tests);
    }

    #[test]
    fn traffic() {
        run("traffic", super::traffic);
    }

    #[test]
    fn records() {
        run("records", super::records);
    }

    #[test]
    fn sources() {
        run("sources", super::sources);
    }

    #[test]
    fn settings() {
        run("settings", super::settings);
    }

    #[test]
    fn overrides() {
        run("overrides", super::overrides);
    }

    #[test]
    fn rows() {
        run("rows", super::rows);
    }

    #[test]
    fn row_lines() {
        run("row_lines", super::row_lines);
    }

    #[test]
    fn override_body() {
        run("override_body", super::override_body);
    }

    #[test]
    fn row_body() {
        run("row_body", super::row_body);
    }

    #[test]
    fn tokens() {
        run("tokens", super::tokens);
    }

    #[test]
    fn mapper() {
        run("mapper", super::mapper);
    }

    #[test]
    fn replies() {
        run("replies", super::replies);
    }

    #[test]
    fn discovery() {
        run("discovery", super::discovery);
    }

    #[test]
    fn map() {
        run("map", super::map);
    }
}
