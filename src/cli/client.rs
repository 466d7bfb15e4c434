//! `ratelimit_client` and `ratelimit_config_check`: the tools of envoyproxy/ratelimit, with their flags and exit codes.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use weir_policies::Dialect;
use weir_policies::watch::Source;
use weir_tls::TlsFiles;

use super::ask::{self, Output, Question};
use super::check;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Usage(String),
    Failed(String),
}

struct Flag {
    name: &'static str,
    takes: Takes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// A value follows, after an equals sign or in the next argument.
    Text,
    /// `true` unless the same argument has a value.
    Switch,
}

const CHECK: [Flag; 2] =
    [Flag { name: "config_dir", takes: Takes::Text }, Flag { name: "merge_domain_configs", takes: Takes::Switch }];

const CLIENT: [Flag; 8] = [
    Flag { name: "dial_string", takes: Takes::Text },
    Flag { name: "domain", takes: Takes::Text },
    Flag { name: "descriptors", takes: Takes::Text },
    Flag { name: "oltp-protocol", takes: Takes::Text },
    Flag { name: "grpc-server-ca-file", takes: Takes::Text },
    Flag { name: "grpc-use-tls", takes: Takes::Switch },
    Flag { name: "grpc-cert-file", takes: Takes::Text },
    Flag { name: "grpc-key-file", takes: Takes::Text },
];

/// Validates all policy files of `-config_dir` as envoyproxy/ratelimit does.
///
/// # Errors
/// If flags or policies are wrong.
pub fn config_check(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write) -> Result<(), Ended> {
    let given = parse(&CHECK, arguments)?;
    let directory = last(&given, "config_dir").ok_or_else(|| Ended::Usage("-config_dir is required".to_owned()))?;
    let merge_domains = is_on(&given, "merge_domain_configs")?;
    let source = Source { all_files: true, dot_files: true, ..Source::from(Path::new(directory)) };
    let loaded = weir_policies::load(&source, Dialect { compatible: true, merge_domains, ..Dialect::default() })
        .map_err(|problems| Ended::Failed(problems.to_string()))?;
    let written = check::write(&loaded, check::THE_SERVERS, out);
    written.map_err(|error| Ended::Failed(format!("cannot write: {error}")))
}

/// Asks the server at `-dial_string` once. A denial is not an error.
///
/// # Errors
/// If flags are wrong, or there is no answer.
pub fn client(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write) -> Result<(), Ended> {
    let given = parse(&CLIENT, arguments)?;
    let tls = if is_on(&given, "grpc-use-tls")? { Some(tls_files(&given)?) } else { None };
    let mut descriptors = Vec::new();
    for (_, text) in given.iter().filter(|(name, _)| *name == "descriptors") {
        let entries = text.split(',').map(|entry| match entry.split_once('=') {
            Some((key, value)) if !value.contains('=') => Ok((key.to_owned(), value.to_owned())),
            _ => Err(Ended::Usage(format!("-descriptors {text:?}: not KEY=VALUE,KEY=VALUE"))),
        });
        descriptors.push(entries.collect::<Result<Vec<_>, _>>()?);
    }
    let question = Question {
        address: last(&given, "dial_string").unwrap_or("localhost:8081").to_owned(),
        tls,
        domain: last(&given, "domain").unwrap_or_default().to_owned(),
        descriptors,
        hits: vec![1],
        limits: Vec::new(),
        receipt: None,
    };
    let mut body = Vec::new();
    ask::run(&question, Output::Json, &mut body).map_err(|error| Ended::Failed(format!("request error: {error}")))?;
    let written = out.write_all(b"response: ").and_then(|()| out.write_all(&body));
    written.map_err(|error| Ended::Failed(format!("cannot write: {error}")))
}

fn tls_files(given: &[(&'static str, String)]) -> Result<TlsFiles, Ended> {
    let file = |name| last(given, name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let [ca, certificate, key] = ["grpc-server-ca-file", "grpc-cert-file", "grpc-key-file"].map(file);
    if certificate.is_some() != key.is_some() {
        return Err(Ended::Usage("-grpc-cert-file and -grpc-key-file need each other".to_owned()));
    }
    Ok(TlsFiles::of(ca, certificate, key))
}

/// Reads flags as Go does: `-name value`, `-name=value`, with one dash or two, up to the first argument that is not a
/// flag.
fn parse(flags: &[Flag], arguments: impl Iterator<Item = OsString>) -> Result<Vec<(&'static str, String)>, Ended> {
    let mut given = Vec::new();
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    while let Some(argument) = arguments.next() {
        let Some(bare) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else { break };
        if bare.is_empty() {
            break;
        }
        let (name, text) = bare.split_once('=').map_or((bare, None), |(name, text)| (name, Some(text.to_owned())));
        let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
            let names: Vec<String> = flags.iter().map(|flag| format!("-{}", flag.name)).collect();
            return Err(Ended::Usage(format!("{argument:?}: no such flag, only {}", names.join(", "))));
        };
        let text = match (text, flag.takes) {
            (Some(text), _) => text,
            (None, Takes::Switch) => "true".to_owned(),
            (None, Takes::Text) => match arguments.next() {
                Some(text) => text,
                None => return Err(Ended::Usage(format!("-{name} needs a value"))),
            },
        };
        given.push((flag.name, text));
    }
    Ok(given)
}

fn last<'a>(given: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
    given.iter().rev().find(|(flag, _)| *flag == name).map(|(_, text)| text.as_str())
}

fn is_on(given: &[(&'static str, String)], name: &str) -> Result<bool, Ended> {
    match last(given, name) {
        None | Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
        Some("true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
        Some(other) => Err(Ended::Usage(format!("-{name}={other}: not a boolean"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Vec<(&'static str, String)>, Ended> {
        parse(&CLIENT, arguments.iter().map(OsString::from))
    }

    #[test]
    fn flags_are_read_in_each_of_gos_forms() {
        let expected = vec![("domain", "shop".to_owned())];
        for arguments in
            [&["-domain", "shop"][..], &["--domain", "shop"], &["-domain=shop"], &["--domain=shop", "rest"]]
        {
            assert_eq!(read(arguments), Ok(expected.clone()), "{arguments:?}");
        }
        assert_eq!(read(&["-grpc-use-tls", "-domain", "a"]).unwrap().len(), 2);
        assert_eq!(is_on(&read(&["-grpc-use-tls=false"]).unwrap(), "grpc-use-tls"), Ok(false));
        assert!(matches!(read(&["-domian", "shop"]), Err(Ended::Usage(reason)) if reason.contains("no such flag")));
        assert!(matches!(read(&["-domain"]), Err(Ended::Usage(reason)) if reason == "-domain needs a value"));
    }
}
