//! The maximum memory of each decoder of outside bytes, as in docs/bounds.md. Each decoder gets the smallest elements
//! of its format, and the test counts its allocations.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use weir_http::fuzz::{override_body, row_body, tokens};
use weir_lab::simulation::traffic::Traffic;
use weir_limiter::overrides::fuzz as overrides;
use weir_limiter::rows::fuzz as rows;
use weir_policies::{Dialect, OverlayFile, Sources, parse_callers, row_file, test_file, traffic_file};
use weir_rls::{json, lenient, receipts};
use weir_settings::Layer;
use weir_telemetry::mapper::Mapper;
use weir_xds::{Resource, TYPE_URL, resource};

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

struct Decoder {
    /// The first cell of the row.
    name: &'static str,
    decode: fn(&[u8]),
    inputs: Vec<Vec<u8>>,
}

/// Repeats `unit` between two texts, as often as fits into `bytes`.
fn many(before: &str, unit: &str, after: &str, bytes: usize) -> Vec<u8> {
    let count = (bytes - before.len() - after.len()) / unit.len();
    format!("{before}{}{after}", unit.repeat(count)).into_bytes()
}

fn within(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    bytes.extend(content);
    bytes
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn request(bytes: &[u8]) {
    let mut texts = Vec::new();
    let _ = lenient::decode(bytes, &mut texts).map(|request| request.domain.len());
}

fn requests() -> Vec<Vec<u8>> {
    let most = 4 * MIB;
    let entries = |count: usize| [0x0a, 0].repeat(count);
    let full = within(2, &entries(64)).repeat(64);
    // Bytes that are not UTF-8, in as many texts and as few bytes as possible.
    let latin = |bytes: usize| within(1, &[within(1, &vec![0xff; bytes]), within(2, &vec![0xff; bytes])].concat());
    let latin = |bytes: usize| within(2, &latin(bytes).repeat(64)).repeat(64);
    vec![
        [0x12, 0].repeat(most / 2),
        within(2, &entries(most / 2)),
        within(2, &entries(64)).repeat(most / 131),
        full.clone(),
        [full, vec![0x0a, 1, 0xff]].concat(),
        within(2, &[0x12, 0].repeat(most / 2)),
        within(1, &vec![0xff; most]),
        latin(1),
        latin(16),
        latin(500),
        [0x23, 0x24].repeat(most / 2),
    ]
}

fn json_request(bytes: &[u8]) {
    let _ = json::parse_request(bytes).map(|request| request.view().domain.len());
}

fn json_requests() -> Vec<Vec<u8>> {
    let most = 4 * MIB;
    let full =
        format!("{{\"descriptors\":[{}{{}}]}}", format!("{{\"entries\":[{}{{}}]}},", "{},".repeat(63)).repeat(63));
    vec![
        many("{\"descriptors\":[", "{},", "{}]}", most),
        many("{\"descriptors\":[{\"entries\":[", "{},", "{}]}]}", most),
        full.into_bytes(),
        many("{\"domain\":\"\\n", "x", "\"}", MIB + 100),
        many("{\"domain\":\"\\n", "x", "\"}", most),
        many("{\"hitsAddend\":\"\\n", "\u{7f}", "\"}", most),
        many("{\"descriptors\":\"", "\u{7f}", "\"}", most),
        many("{\"descriptors\":[{\"isNegativeHits\":\"", "\u{7f}", "\"}]}", most),
        many("{\"descriptors\":[{\"limit\":{\"unit\":\"", "\u{7f}", "\"}}]}", most),
        many("{\"", "\u{7f}", "\":1}", most),
        many(&format!("{{\"descriptors\":[{}", "{},".repeat(64)), "[", "", most),
    ]
}

fn receipt(bytes: &[u8]) {
    let _ = receipts::parse(text(bytes)).map(|holds| holds.len());
}

fn receipts() -> Vec<Vec<u8>> {
    let smallest = "AAAAAAAAAAAAAQAA";
    vec![many("1.", smallest, "", 16 * 64 + 2), many("1.", "A", "", receipts::TEXT_BYTES_MAX), many("1.", "A", "", MIB)]
}

fn resources(bytes: &[u8]) {
    let resource = Resource { type_url: TYPE_URL.to_owned(), value: bytes.to_vec().into() };
    let _ = resource::policies(&[resource], 32 * MIB, Dialect::default());
}

/// Each kind of message, as often as it fits into a resource of 32 KiB or 256 KiB.
fn resource_contents() -> Vec<Vec<u8>> {
    let named = |number: u8, name: usize| within(number, format!("{name:05}").as_bytes());
    let plain = |name: usize| within(3, &named(1, name));
    let limited = |name: usize| within(3, &[named(1, name), within(3, &[0x08, 3, 0x10, 9])].concat());
    let replacing = |name: usize| {
        let limit = [vec![0x08, 3], within(5, &[0x0a, 1, b'a']).repeat(64)].concat();
        within(3, &[named(1, name), within(3, &limit)].concat())
    };
    // A value of metadata, and a list of empty values and of mappings.
    let value = |value: &[u8]| within(1, &[named(1, 1), within(2, value)].concat());
    let metadata = |name: usize, fields: &[u8]| within(3, &[named(1, name), within(8, fields)].concat());
    let mut contents = vec![[0x1a, 0].repeat(15 * MIB)];
    for bytes in [32 * KIB, 256 * KIB] {
        for of in [&plain as &dyn Fn(usize) -> Vec<u8>, &limited, &replacing] {
            contents.push(fitting(bytes, of));
        }
        contents.push(fitting(bytes, &|name| metadata(name, &value(&value_list(&[], 300)))));
        contents.push(fitting(bytes, &|name| metadata(name, &value(&value_list(&within(5, &[0x0a, 0]), 300)))));
        contents.push(fitting(bytes, &|name| metadata(name, &value(&[0x20, 1]))));
    }
    contents
}

fn value_list(value: &[u8], count: usize) -> Vec<u8> {
    within(6, &within(1, value).repeat(count))
}

/// The most descriptors with which the resource is not refused before decoding, and the most that fit into the bytes.
fn fitting(bytes: usize, descriptor: &dyn Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let of = |count: usize| {
        let descriptors: Vec<u8> = (0..count).flat_map(descriptor).collect();
        [within(2, b"shop"), descriptors].concat()
    };
    let count = bytes / descriptor(0).len();
    let is_taken = |count: usize| weir_xds::is_within_memory(&of(count));
    let (mut least, mut most) = (0, count + 1);
    while most - least > 1 {
        let middle = usize::midpoint(least, most);
        if is_taken(middle) { least = middle } else { most = middle }
    }
    of(least)
}

fn policies(bytes: &[u8]) {
    let _ = weir_policies::parse(&[("policies.yaml", text(bytes))]);
}

/// The smallest values of YAML, and of the keys of these files.
fn yaml(bytes: usize) -> Vec<Vec<u8>> {
    let head = "domain: d\ndescriptors:\n";
    let numbered = |unit: &dyn Fn(usize) -> String| {
        let mut text = head.to_owned();
        for number in 0.. {
            if text.len() >= bytes {
                break;
            }
            text.push_str(&unit(number));
        }
        text.into_bytes()
    };
    vec![
        many("[", "a,", "a]", bytes),
        many("{", "a,", "a}", bytes),
        many("", "-\n", "", bytes),
        many("[", "[],", "[]]", bytes),
        many("[", "{},", "{}]", bytes),
        many("[", "\"#\",", "a]", bytes),
        many("", "#\n", "", bytes),
        many("[", "&a a,", "a]", bytes),
        many("[&a a,", "*a,", "a]", bytes),
        many(head, "-\n", "", bytes),
        many(head, "- {}\n", "", bytes),
        many(head, "- {key: a}\n", "", bytes),
        numbered(&|n| format!("- {{key: k{n}}}\n")),
        numbered(&|n| format!("- {{key: k{n}, rate_limit: {{rate: 1/s}}}}\n")),
        many(&format!("{head}- key: a\n  values: ["), "a,", "a]", bytes),
        many(&format!("{head}- key: a\n  metadata: ["), "a,", "a]", bytes),
    ]
}

fn tests(bytes: &[u8]) {
    let _ = test_file::parse(&"a.test.yaml".into(), text(bytes), Path::new(""));
    let _ = traffic_file::parse(&"a.traffic.yaml".into(), text(bytes), Path::new(""));
    let _ = OverlayFile::of("a.overlay.yaml", text(bytes));
    let _ = parse_callers("a.callers.yaml", text(bytes), None);
}

/// Tests, traffic, overlays and callers.
fn test_files() -> Vec<Vec<u8>> {
    let bytes = 256 * KIB;
    let aliased =
        format!("a: &a [{}x]\noverlays:\n- {{domain: d, descriptors: [a], metadata: {{a: [", "x,".repeat(1_000));
    let overlay = "- {domain: d, descriptors: [a], on_error: deny}\n";
    let overlays = format!("overlays:\n{}", overlay.repeat(1_000));
    let caller = |n: usize| {
        format!("- {{name: c{n}, certificates: [c{n}.x, 'spiffe://x/{n}/*'], domains: [d{n}], may: [peek]}}\n")
    };
    let callers = format!("callers:\n{}", (0..2_500).map(caller).collect::<String>());
    let others = vec![many(&aliased, "*a,", "*a]}}", bytes), overlays.into_bytes(), callers.into_bytes()];
    [yaml(bytes), others].concat()
}

fn lines(bytes: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("a.jsonl");
    fs::File::create(&log).unwrap().write_all(bytes).unwrap();
    let _ = Traffic::open(&log).and_then(|mut traffic| traffic.next().map(|_| ()));
    let traffic = directory.path().join("a.traffic.yaml");
    fs::write(&traffic, "domain: d\naccess_log: {file: a.jsonl, time: time, ask: ['user=<a>,path=<b>']}\n").unwrap();
    let _ = Traffic::open(&traffic).and_then(|mut traffic| traffic.next().map(|_| ()));
}

fn line_files() -> Vec<Vec<u8>> {
    const TIME: &str = "\"time\":\"2026-12-01T10:00:00Z\",\"domain\":\"d\"";
    let headed = |line: Vec<u8>| [b"{\"weir_record\":1}\n".to_vec(), line].concat();
    let most = MIB - 100;
    let request = format!("{{{TIME},\"descriptors\":[{}", "{\"entries\":[[\"\",\"\"],[\"\",\"\"]]},".repeat(63));
    let request = format!("{request}{{\"entries\":[]}}]}}\n");
    vec![
        headed(many(&format!("{{{TIME},\"descriptors\":["), "{\"entries\":[]},", "{\"entries\":[]}]}", most)),
        headed(many(&format!("{{{TIME},\"descriptors\":[{{\"entries\":["), "[\"\",\"\"],", "[\"\",\"\"]]}]}", most)),
        headed(many(&format!("{{{TIME},\"domain\":\""), "\u{7f}", "\"}", most)),
        headed(many("{\"time\":\"", "\u{7f}", "\"}", most)),
        many("{\"time\":[", "[],", "[]]}", most),
        many("{\"time\":\"2026-12-01T10:00:00Z\",\"a\":\"1\",\"b\":\"\\n", "x", "\"}", most),
        headed(request.repeat(4 * MIB / request.len()).into_bytes()),
        many("", "{\"time\":\"2026-12-01T10:00:00Z\",\"a\":\"1\",\"b\":\"1\"}\n", "", 4 * MIB),
    ]
}

fn override_lines() -> Vec<Vec<u8>> {
    let line = |n: usize| {
        format!(
            "{{\"domain\":\"\",\"descriptor\":[[\"{n:05}\",\"\"]],\"limits\":[{{\"name\":null,\"requests\":1,\"window_us\":1000000,\
             \"burst\":null}}],\"until_us\":1,\"set_us\":1,\"by\":\"\",\"reason\":\"\"}}\n"
        )
    };
    vec![
        many("", "\n", "", MIB),
        many("", "{}\n", "", MIB),
        (0..MIB / line(0).len()).flat_map(|n| line(n).into_bytes()).collect(),
        many("{\"domain\":\"\",\"descriptor\":[", "[\"\",\"\"],", "[\"\",\"\"]]}", 8 * 1_024),
    ]
}

fn row_texts() -> Vec<Vec<u8>> {
    let limit = "{\"requests\":1,\"window_us\":1000}";
    vec![
        many("{\"domain\":\"\",\"plan\":\"a\",\"descriptor\":[", "[\"\",\"\"],", "[\"\",\"\"]]}", 8 * 1_024),
        many(
            "{\"domain\":\"\",\"descriptor\":[[\"\",\"\"]],\"limits\":[",
            &format!("{limit},"),
            &format!("{limit}]}}"),
            8 * 1_024,
        ),
        many("{\"domain\":\"\",\"plan\":\"a\",\"descriptor\":[[\"a\",\"b\"]],\"note\":\"", "x", "\"}", 200),
    ]
}

fn row_lines() -> Vec<Vec<u8>> {
    vec![
        many("domain,tenant,plan\n", "a,b,c\n", "", 8 * 1_024),
        many("domain,tenant,limits\na,b,", "x=1/s;", "x=1/s", 8 * 1_024),
        many("domain,descriptor,plan\na,\"", "a=b,", "a=b\",c", 8 * 1_024),
    ]
}

/// As the admin listener reads a POST: all lines, then their rows.
fn row_bodies(bytes: &[u8]) {
    bytes.split(|byte| *byte == b'\n').for_each(row_body);
}

fn row_posts() -> Vec<Vec<u8>> {
    let head = "{\"domain\":\"\",\"descriptor\":\"";
    let limit = "{\"requests\":1,\"window_us\":1000}";
    vec![
        many("", "{}\n", "", MIB),
        many(head, "a=,", "a=\",\"plan\":\"\"}", MIB),
        many(&format!("{head}a=\",\"limits\":["), &format!("{limit},"), &format!("{limit}]}}"), MIB),
    ]
}

fn override_bodies() -> Vec<Vec<u8>> {
    let head = "{\"domain\":\"\",\"reason\":\"a\",\"for_us\":1,\"descriptor\":\"";
    let limit = "{\"requests\":1,\"window_us\":1000}";
    vec![
        many(head, "a=,", &format!("a=\",\"limits\":[{limit}]}}"), 16 * KIB),
        many(&format!("{head}a=\",\"limits\":["), &format!("{limit},"), &format!("{limit}]}}"), 16 * KIB),
    ]
}

fn sources(bytes: &[u8]) {
    let _ = serde_json::from_slice::<Sources>(bytes);
}

fn served() -> Vec<Vec<u8>> {
    let head = "{\"compatible\":false,\"merge_domains\":false,\"calendar_months\":false,\"files\":[";
    let tree = format!("{head}{{\"name\":\"\",\"tree\":");
    vec![
        many(head, "{\"name\":\"\",\"text\":\"\"},", "{\"name\":\"\",\"text\":\"\"}]}", MIB),
        many(&format!("{tree}{{\"list\":["), "{\"text\":\"\"},", "{\"text\":\"\"}]}}]}", MIB),
        many(&format!("{tree}{{\"list\":["), "{\"list\":[]},", "{\"list\":[]}]}}]}", MIB),
        many(&format!("{tree}{{\"mapping\":["), "[\"\",{\"text\":\"\"}],", "[\"\",{\"text\":\"\"}]]}}]}", MIB),
    ]
}

fn mapper(bytes: &[u8]) {
    let _ = Mapper::parse(text(bytes));
}

fn mappings() -> Vec<Vec<u8>> {
    let mut files = yaml(256 * KIB);
    files.push(many("mappings:\n", "- {match: a.b, name: a}\n", "", MIB));
    files.push(many("a: &a [x,x,x,x,x,x,x,x,x,x]\nmappings: [", "*a,", "*a]", MIB));
    files
}

fn settings(bytes: &[u8]) {
    let _ = Layer::yaml("weir.yaml", text(bytes));
}

fn decoders() -> Vec<Decoder> {
    vec![
        Decoder { name: "a request by gRPC", decode: request, inputs: requests() },
        Decoder { name: "a request by `POST /json`", decode: json_request, inputs: json_requests() },
        Decoder { name: "a receipt", decode: receipt, inputs: receipts() },
        Decoder { name: "the resources of an xDS response", decode: resources, inputs: resource_contents() },
        Decoder { name: "policy files", decode: policies, inputs: yaml(256 * KIB) },
        Decoder { name: "a file of tests, of traffic, of overlays or of callers", decode: tests, inputs: test_files() },
        Decoder { name: "a record, an access log", decode: lines, inputs: line_files() },
        Decoder { name: "overrides in the store", decode: overrides, inputs: override_lines() },
        Decoder { name: "a row in the store", decode: rows, inputs: row_texts() },
        Decoder { name: "a file of rows, in a command of weir", decode: row_file::fuzz, inputs: row_lines() },
        Decoder { name: "rows by the admin listener", decode: row_bodies, inputs: row_posts() },
        Decoder { name: "a file of tokens", decode: tokens, inputs: token_files() },
        Decoder { name: "an override by the admin listener", decode: override_body, inputs: override_bodies() },
        Decoder { name: "policies of a server, in a command of weir", decode: sources, inputs: served() },
        Decoder { name: "a mapping file of StatsD", decode: mapper, inputs: mappings() },
        Decoder { name: "a settings file", decode: settings, inputs: yaml(256 * KIB) },
    ]
}

fn allowed(page: &str, name: &str, input: &[u8]) -> usize {
    let row = page.lines().find(|line| line.starts_with(&format!("| {name} |")));
    let row = row.unwrap_or_else(|| panic!("docs/bounds.md has no row {name:?}"));
    let cell = row.split('|').nth(3).unwrap().trim();
    let (multiple, rest) = cell.split_once(" x its bytes + ").unwrap_or_else(|| panic!("{row}"));
    let (fixed, each) = rest.split_once(", and ").map_or((rest, None), |(fixed, each)| (fixed, Some(each)));
    let of_descriptors = each.map_or(0, |each| {
        let each = size(each.strip_suffix(" for each descriptor").unwrap_or_else(|| panic!("{row}")));
        each * text(input).matches("key:").count()
    });
    multiple.parse::<usize>().unwrap() * input.len() + size(fixed) + of_descriptors
}

/// The bytes of a size such as `2 MiB`.
fn size(text: &str) -> usize {
    let (number, unit) = text.split_once(' ').unwrap_or_else(|| panic!("no size: {text}"));
    number.parse::<usize>().unwrap() << if unit == "MiB" { 20 } else { 10 }
}

fn token_files() -> Vec<Vec<u8>> {
    let most = 64 * KIB;
    let lines = (0..).map(|number| format!("{number:x} {number:016} all *\n"));
    let short = lines.take(most / 40).collect::<String>().into_bytes();
    vec![
        short,
        many("a 0123456789abcdef look ", "a,", "a\n", most),
        many("a 0123456789abcdef ", "all,", "all *\n", most),
        many("", "\n", "", most),
    ]
}

#[test]
fn no_decoder_takes_more_than_the_page_says() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bounds.md")).unwrap();
    let mut problems = Vec::new();
    for Decoder { name, decode, inputs } in decoders() {
        for (number, input) in inputs.iter().enumerate() {
            let measured = allocation_counter::measure(|| decode(input));
            let took = usize::try_from(measured.bytes_max).unwrap() + input.len();
            println!("{name}, input {number}: {} bytes took {took}", input.len());
            let allowed = allowed(&page, name, input);
            if took > allowed {
                problems
                    .push(format!("{name}, input {number}: {} bytes took {took}, more than {allowed}", input.len()));
            }
            // A buffer that grew with the input.
            assert!(measured.bytes_current < 64 * 1_024, "{name} keeps {} bytes", measured.bytes_current);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
