//! Envoy's API, as go-control-plane has it, against proto/.
//!
//! weir drops a field that proto/ lacks, and a limit without one of its fields means something else: `unit_multiplier` of Envoy 1.40
//! made one in 30 s to one a second. So each field of the messages with limits must be in proto/.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use protox::prost_reflect::{Cardinality, FieldDescriptor, Kind, MessageDescriptor};

use crate::generated::{SERVICE_PROTO, XDS_PROTOS, root};
use weir_testkit::tools;

/// The packages whose messages proto/ has whole. Of other messages it has the fields that weir uses.
const WHOLE: [&str; 3] =
    ["envoy.service.ratelimit.v3", "envoy.extensions.common.ratelimit.v3", "ratelimit.config.ratelimit.v3"];

/// The fields and enum values of one side: what they belong to and their number, with name and type.
type Parts = BTreeMap<(String, i32), String>;

fn ours() -> Parts {
    let mut compiler = protox::Compiler::new([root()]).expect("proto/ is there");
    compiler.include_imports(true).open_files(XDS_PROTOS.iter().chain([&SERVICE_PROTO])).expect("the files are valid");
    let pool = compiler.descriptor_pool();
    let mut parts = Parts::new();
    for message in pool.all_messages().filter(|message| !is_googles(message)) {
        for field in message.fields() {
            let name = (message.full_name().to_owned(), i32::try_from(field.number()).expect("a field number"));
            parts.insert(name, format!("{} {}", field.name(), kind(&field)));
        }
    }
    for of in pool.all_enums() {
        parts.extend(of.values().map(|value| ((of.full_name().to_owned(), value.number()), value.name().to_owned())));
    }
    parts
}

fn is_googles(message: &MessageDescriptor) -> bool {
    message.package_name().starts_with("google.")
}

fn kind(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(of) => of.full_name().to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    if field.cardinality() == Cardinality::Repeated { format!("repeated:{kind}") } else { kind }
}

/// The output of tests/go-control-plane/fields.
fn theirs(program: &Path) -> Parts {
    let output = Command::new(program).output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let part = |line: &str| {
        let mut words = line.splitn(4, ' ').skip(1);
        let (of, number) = (words.next().expect("a message"), words.next().expect("a number"));
        let number = number.parse().expect("a number");
        ((of.to_owned(), number), words.next().expect("a name").to_owned())
    };
    let parts: Parts = text.lines().map(part).collect();
    assert!(parts.len() > 500, "{} parts of the API: {text}", parts.len());
    parts
}

/// What proto/ lacks of the messages that it has whole, and what it has otherwise.
fn differences(ours: &Parts, theirs: &Parts) -> Vec<String> {
    let is_ours = |of: &str| ours.keys().any(|(name, _)| name == of);
    let is_whole = |of: &str| WHOLE.iter().any(|package| of.starts_with(package)) || of.ends_with("RateLimitUnit");
    let mut found = Vec::new();
    for ((of, number), part) in theirs.iter().filter(|((of, _), _)| is_ours(of)) {
        match ours.get(&(of.clone(), *number)) {
            None if is_whole(of) => found.push(format!("{of}: no {part} = {number}")),
            Some(own) if own != part => found.push(format!("{of}: {own} = {number} is {part}")),
            _ => {}
        }
    }
    found
}

#[test]
fn proto_has_every_field_of_envoys_messages_with_limits() {
    if tools::is_missing("go", &["version"]) {
        return;
    }
    let source = tools::repository().join("tests/go-control-plane/fields");
    let (ours, theirs) = (ours(), theirs(&tools::go_build("go-control-plane-fields", &source)));
    assert_eq!(differences(&ours, &theirs), [""; 0]);
    // The comparison finds a field that is left out, and one with another type.
    let limit = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride";
    let mut without = ours.clone();
    without.remove(&(limit.to_owned(), 3)).expect("unit_multiplier");
    without.insert((limit.to_owned(), 1), "requests_per_unit string".to_owned());
    let expected = [
        format!("{limit}: requests_per_unit string = 1 is requests_per_unit uint32"),
        format!("{limit}: no unit_multiplier google.protobuf.UInt32Value = 3"),
    ];
    assert_eq!(differences(&without, &theirs), expected);
}

/// The API changes without weir's code, so this is for a job of its own.
#[test]
#[ignore = "asks the Go module proxy"]
fn proto_has_every_field_of_the_newest_api() {
    let source = tools::repository().join("tests/go-control-plane");
    let program = tools::prepared("go-control-plane-newest", |target| {
        for file in ["go.mod", "go.sum", "fields/main.go"] {
            let to = target.join(file);
            fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
            fs::copy(source.join(file), to).expect("a copy");
        }
        let run = |arguments: &[&str]| {
            let mut go = Command::new("go");
            go.current_dir(target).args(arguments);
            tools::succeed(go);
        };
        let api = "github.com/envoyproxy/go-control-plane";
        run(&["get", &format!("{api}/envoy@latest"), &format!("{api}/ratelimit@latest")]);
        run(&["build", "-mod=mod", "-o", "program", "./fields"]);
        target.join("program")
    });
    assert_eq!(differences(&ours(), &theirs(&program)), [""; 0], "and update tests/go-control-plane/go.mod");
}
