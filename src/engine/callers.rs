//! Callers: who they are, and what they may do to which domain. [cr-1]
//!
//! ```
//! use weir_engine::callers::{Caller, Callers, Domains, Right, Rights};
//!
//! let mut callers = Callers::default();
//! let team = callers.add(Caller {
//!     name: "team-a".into(),
//!     domains: Domains::new(["team-a/*"]).unwrap(),
//!     may: [Right::Charge].into_iter().collect(),
//!     hits_max: 10,
//! });
//! callers.add_certificate(team, &"spiffe://mesh/ns/team-a/*".parse().unwrap()).unwrap();
//! let found = callers.find(&["spiffe://mesh/ns/team-a/web".into()], "grpc").unwrap();
//! assert!(found.domains.has("team-a/shop") && !found.domains.has("team-b/shop"));
//! assert!(callers.find(&["spiffe://mesh/ns/team-ab/web".into()], "grpc").is_err());
//! ```
//!
//! Everything is made when the file loads. A request compares its domain with those of one caller. Not here: the file
//! (policies), certificates (tls), and which caller sends on a connection (limiter).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hashbrown::HashMap;

use super::charge::Operation;
use super::descriptor::Hits;

/// The longest name in a certificate that can be a caller's, in bytes. A SPIFFE ID has at most as many.
pub const NAME_BYTES_MAX: usize = 2_048;
/// The longest DNS name, and the longest label of one, in bytes.
const DNS_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// So many domains are compared one after the other.
const FEW_MAX: usize = 8;
/// Stands for any text at the end of a domain, and for any further segments at the end of a URI.
const ANY: char = '*';

crate::named! {
    /// What a descriptor of a request does.
    pub enum Right {
        Charge = "charge",
        Peek = "peek",
        Refund = "refund",
        Settle = "settle",
        /// Has a limit of its own, which replaces those of the policies.
        Limits = "limits",
    }
}

/// Some rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Self {
        Self(rights.into_iter().fold(0, |all, right| all | 1 << right as u8))
    }
}

impl Rights {
    pub const fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Right::ALL.into_iter().filter(move |right| self.has(*right)).map(Right::name)
    }
}

/// Domains: some by their names, and some by the beginning of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// Sorted.
    exact: Box<[Box<str>]>,
    /// Sorted, and none begins with another. So the last that is not after a domain is the only one it can begin with.
    prefixes: Box<[Box<str>]>,
}

/// Why a text stands for no domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    #[error("an empty domain")]
    Empty,
    #[error("a {ANY} may only be the last character of a domain")]
    Wildcard,
}

impl Domains {
    /// Reads names, and prefixes that end with `*`.
    ///
    /// # Errors
    /// The position of the first text that is neither, with the reason.
    pub fn new<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, (usize, DomainError)> {
        let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
        for (at, text) in texts.into_iter().enumerate() {
            let (list, name): (&mut Vec<Box<str>>, _) = match text.strip_suffix(ANY) {
                Some(prefix) => (&mut prefixes, prefix),
                None if text.is_empty() => return Err((at, DomainError::Empty)),
                None => (&mut exact, text),
            };
            if name.contains(ANY) {
                return Err((at, DomainError::Wildcard));
            }
            list.push(name.into());
        }
        exact.sort_unstable();
        prefixes.sort_unstable();
        exact.dedup();
        // The sorted list has a prefix right before all texts that begin with it.
        prefixes.dedup_by(|later, earlier| later.starts_with(&**earlier));
        Ok(Self { exact: exact.into(), prefixes: prefixes.into() })
    }

    /// The texts that [`Domains::new`] reads, without those that another one covers.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        let prefixes = self.prefixes.iter().map(|prefix| format!("{prefix}{ANY}"));
        self.exact.iter().map(ToString::to_string).chain(prefixes)
    }

    pub fn all() -> Self {
        Self { exact: Box::default(), prefixes: ["".into()].into() }
    }

    /// Whether these are all domains. No other domains have an empty name.
    pub fn are_all(&self) -> bool {
        self.has("")
    }

    pub fn has(&self, domain: &str) -> bool {
        // Most differ in their lengths.
        let is_exact = if self.exact.len() <= FEW_MAX {
            self.exact.iter().any(|one| **one == *domain)
        } else {
            self.exact.binary_search_by(|one| (**one).cmp(domain)).is_ok()
        };
        is_exact || {
            let not_after = self.prefixes.partition_point(|prefix| **prefix <= *domain);
            not_after.checked_sub(1).is_some_and(|last| domain.starts_with(&*self.prefixes[last]))
        }
    }
}

impl fmt::Display for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().collect::<Vec<_>>().join(", "))
    }
}

/// One caller of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: Box<str>,
    pub domains: Domains,
    pub may: Rights,
    /// The most hits of one descriptor.
    pub hits_max: Hits,
}

impl Caller {
    /// Whether the caller may do this to a domain that it has. [cr-4]
    ///
    /// # Errors
    /// What it lacks.
    pub fn check(&self, operation: Operation, settles: bool, has_limit: bool) -> Result<(), Refusal> {
        let (right, hits) = match operation {
            Operation::Peek => (Right::Peek, 0),
            Operation::Consume(hits) | Operation::Report(hits) => (Right::Charge, hits),
            Operation::Refund(hits) => (Right::Refund, hits),
        };
        let right = if settles { Right::Settle } else { right };
        if !self.may.has(right) {
            return Err(Refusal::Right(right));
        }
        if has_limit && !self.may.has(Right::Limits) {
            return Err(Refusal::Right(Right::Limits));
        }
        if hits > self.hits_max { Err(Refusal::Hits) } else { Ok(()) }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No caller has a name of the certificate, or the listener.
    Unlisted,
    /// The names of the certificate are those of different callers.
    SeveralCallers,
    /// The certificate has more names than weir reads, or a malformed list of names.
    TooManyNames,
    Domain,
    Right(Right),
    /// A descriptor has more hits than the caller may ask for.
    Hits,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Self; 10] = [
        Self::Unlisted,
        Self::SeveralCallers,
        Self::TooManyNames,
        Self::Domain,
        Self::Right(Right::Charge),
        Self::Right(Right::Peek),
        Self::Right(Right::Refund),
        Self::Right(Right::Settle),
        Self::Right(Right::Limits),
        Self::Hits,
    ];

    /// Its position in [`Refusal::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Unlisted => 0,
            Self::SeveralCallers => 1,
            Self::TooManyNames => 2,
            Self::Domain => 3,
            Self::Right(right) => 4 + right as usize,
            Self::Hits => 9,
        }
    }

    /// One word, for metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unlisted => "unlisted",
            Self::SeveralCallers => "several_callers",
            Self::TooManyNames => "too_many_names",
            Self::Domain => "domain",
            Self::Right(right) => right.name(),
            Self::Hits => "hits",
        }
    }
}

/// A name of a caller's certificates: a DNS name, a URI, or all URIs below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateName {
    /// In lower case, if it is a DNS name. Of URIs below one: that URI with the slash at its end.
    text: Box<str>,
    is_prefix: bool,
}

impl FromStr for CertificateName {
    type Err = String;

    /// Reads `envoy.mesh.example`, `spiffe://mesh/ns/team-a/sa/web`, or `spiffe://mesh/ns/team-a/*`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > NAME_BYTES_MAX {
            return Err(format!("{} bytes: at most {NAME_BYTES_MAX}", text.len()));
        }
        if !text.contains("://") {
            return dns_name(text).map(|text| Self { text, is_prefix: false });
        }
        let uri = text.strip_suffix("/*").unwrap_or(text);
        if uri.contains(ANY) {
            return Err(format!("a {ANY} may only be the last segment of a URI"));
        }
        if !is_plain_uri(uri) {
            let parts = "a scheme, a host, and segments that are neither empty nor . or ..";
            return Err(format!(
                "not a plain URI: it has {parts}, and no other characters than a-z A-Z 0-9 . _ ~ : @ -"
            ));
        }
        let is_prefix = uri.len() < text.len();
        Ok(Self { text: if is_prefix { format!("{uri}/").into() } else { uri.into() }, is_prefix })
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.is_prefix { write!(f, "{ANY}") } else { Ok(()) }
    }
}

/// A DNS name in lower case.
fn dns_name(text: &str) -> Result<Box<str>, String> {
    if !text.is_ascii() {
        return Err("not in ASCII: write the form that the certificate has, with xn--".to_owned());
    }
    if text.contains(ANY) {
        return Err("a wildcard: write one DNS name, or a URI with /* at its end".to_owned());
    }
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    if text.len() > DNS_BYTES_MAX || !text.split('.').all(is_label) || text.rsplit('.').next().is_some_and(is_number) {
        return Err("neither a DNS name nor a URI such as spiffe://mesh.example/ns/team-a/sa/web".to_owned());
    }
    Ok(text.to_ascii_lowercase().into())
}

/// Whether a URI has one spelling only: no percent sign, no query, no segment that a reader could leave out.
fn is_plain_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~:@-".contains(&byte);
    let is_segment = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain);
    !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase()) && rest.split('/').all(is_segment)
}

/// The callers of a file, by their names.
#[derive(Clone, Debug, Default)]
pub struct Callers {
    list: Vec<Arc<Caller>>,
    /// The index of the caller of each name, and of each URI with the slash at its end.
    exact: HashMap<Box<str>, usize>,
    prefixes: HashMap<Box<str>, usize>,
    listeners: HashMap<Box<str>, usize>,
}

/// Identifies a caller of [`Callers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerId(usize);

impl Callers {
    pub fn add(&mut self, caller: Caller) -> CallerId {
        self.list.push(Arc::new(caller));
        CallerId(self.list.len() - 1)
    }

    /// Gives a caller a name of certificates.
    ///
    /// # Errors
    /// The caller that has it already.
    pub fn add_certificate(&mut self, of: CallerId, name: &CertificateName) -> Result<(), Arc<Caller>> {
        let names = if name.is_prefix { &mut self.prefixes } else { &mut self.exact };
        put(names, &name.text, of).map_err(|taken| self.list[taken].clone())
    }

    /// Gives a caller a listener.
    ///
    /// # Errors
    /// The caller that has it already.
    pub fn add_listener(&mut self, of: CallerId, name: &str) -> Result<(), Arc<Caller>> {
        put(&mut self.listeners, name, of).map_err(|taken| self.list[taken].clone())
    }

    /// The callers, in the order of the file.
    pub fn list(&self) -> &[Arc<Caller>] {
        &self.list
    }

    /// The caller of a connection, by the names of its certificate, or else by its listener. DNS names are in lower
    /// case. [cr-2] [cr-3]
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(&self, names: &[Box<str>], listener: &str) -> Result<&Arc<Caller>, Refusal> {
        let mut found = None;
        for of_name in names.iter().filter_map(|name| self.of_name(name)) {
            if *found.get_or_insert(of_name) != of_name {
                return Err(Refusal::SeveralCallers);
            }
        }
        let found = found.or_else(|| self.listeners.get(listener).copied());
        found.map(|found| &self.list[found]).ok_or(Refusal::Unlisted)
    }

    /// The caller of one name: the exact name, or the longest URI above it.
    fn of_name(&self, name: &str) -> Option<usize> {
        if let Some(exact) = self.exact.get(name) {
            return Some(*exact);
        }
        if self.prefixes.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain_uri(name) {
            return None;
        }
        name.rmatch_indices('/').find_map(|(slash, _)| self.prefixes.get(&name[..=slash])).copied()
    }
}

fn put(names: &mut HashMap<Box<str>, usize>, name: &str, of: CallerId) -> Result<(), usize> {
    match names.get(name) {
        Some(taken) => Err(*taken),
        None => {
            names.insert(name.into(), of.0);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn caller(name: &str) -> Caller {
        let domains = Domains::new(["shop"]).unwrap();
        Caller { name: name.into(), domains, may: Right::ALL.into_iter().collect(), hits_max: 10 }
    }

    /// Callers, each with the names of its certificates. A name without a dot is a listener.
    fn callers(named: &[(&str, &[&str])]) -> Callers {
        let mut callers = Callers::default();
        for (name, names) in named {
            let id = callers.add(caller(name));
            for name in *names {
                match name.contains('.') {
                    true => callers.add_certificate(id, &name.parse().unwrap()).unwrap(),
                    false => callers.add_listener(id, name).unwrap(),
                }
            }
        }
        callers
    }

    fn found(callers: &Callers, names: &[&str], listener: &str) -> String {
        let names: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        callers.find(&names, listener).map_or_else(|refusal| refusal.name().to_owned(), |found| found.name.to_string())
    }

    #[test]
    fn an_exact_name_comes_before_the_longest_uri_above_and_the_listener_last() {
        let callers = callers(&[
            ("exact", &["spiffe://m.x/ns/a/sa/web", "envoy.mesh"]),
            ("ns", &["spiffe://m.x/ns/a/*"]),
            ("mesh", &["spiffe://m.x/*"]),
            ("local", &["sidecar"]),
        ]);
        for (names, expected) in [
            (&["spiffe://m.x/ns/a/sa/web"][..], "exact"),
            (&["envoy.mesh"], "exact"),
            (&["spiffe://m.x/ns/a/sa/web", "envoy.mesh"], "exact"),
            (&["spiffe://m.x/ns/a/sa/webs"], "ns"),
            (&["spiffe://m.x/ns/a"], "mesh"),
            (&["spiffe://m.x/ns/ab/sa"], "mesh"),
            (&["spiffe://m.x"], "local"),
            (&["spiffe://m.xx/ns/a/sa/web"], "local"),
            (&["envoy.mesh.other"], "local"),
            (&[], "local"),
            (&["spiffe://m.x/ns/a/sa/web", "spiffe://m.x/ns/a/sa/db"], "several_callers"),
            (&["other", "spiffe://m.x/ns/a/sa/db"], "ns"),
        ] {
            assert_eq!(found(&callers, names, "sidecar"), expected, "{names:?}");
        }
        assert_eq!(found(&callers, &["other"], "grpc"), "unlisted");
    }

    #[test]
    fn a_name_that_could_be_read_in_two_ways_is_below_no_uri() {
        let callers = callers(&[("ns", &["spiffe://m.x/ns/a/*"])]);
        for name in [
            "spiffe://m.x/ns/a/",
            "spiffe://m.x/ns/a//web",
            "spiffe://m.x/ns/a/../b/web",
            "spiffe://m.x/ns/a/./web",
            "spiffe://m.x/ns/b/../a/web",
            "spiffe://m.x/ns/a/%2e%2e/b",
            "spiffe://m.x/ns/a/web?x",
            "spiffe://m.x/ns/a/web#x",
            "spiffe://m.x/ns/a/web\0",
            "spiffe://m.x/ns/a/w\u{e9}b",
            "spiffe://m.x/ns/a/*",
            "SPIFFE://m.x/ns/a/web",
            "spiffe://M.x/ns/a/web",
            "spiffe:///ns/a/web",
            "//m.x/ns/a/web",
        ] {
            assert_eq!(found(&callers, &[name], "grpc"), "unlisted", "{name:?}");
        }
        let long = format!("spiffe://m.x/ns/a/{}", "x".repeat(NAME_BYTES_MAX));
        assert_eq!(found(&callers, &[&long], "grpc"), "unlisted");
        assert_eq!(found(&callers, &[&long[..NAME_BYTES_MAX]], "grpc"), "ns");
    }

    #[test]
    fn a_name_of_a_file_is_one_dns_name_a_plain_uri_or_all_uris_below_one() {
        let read = |text: &str| text.parse::<CertificateName>().map(|name| name.to_string());
        for text in
            ["envoy.mesh", "xn--mnchen-3ya.example", "a_b.c-d", "spiffe://m.x", "spiffe://m.x/*", "https://a:1/b"]
        {
            assert_eq!(read(text).as_deref(), Ok(text));
        }
        assert_eq!(read("Envoy.MESH").as_deref(), Ok("envoy.mesh"));
        for (text, reason) in [
            ("", "neither"),
            ("a..b", "neither"),
            ("envoy.mesh.", "neither"),
            ("10.0.0.1", "neither"),
            ("::1", "neither"),
            ("a b", "neither"),
            ("m\u{fc}nchen.example", "not in ASCII"),
            ("*.mesh", "a wildcard"),
            ("spiffe://*", "not a plain URI"),
            ("spiffe://m.x/a*", "a * may only"),
            ("spiffe://m.x/*/b", "a * may only"),
            ("spiffe://m.x/ns//*", "not a plain URI"),
            ("spiffe://m.x/../*", "not a plain URI"),
            ("spiffe://m.x/a?b", "not a plain URI"),
            ("Spiffe://m.x/a", "not a plain URI"),
            ("spiffe:///*", "not a plain URI"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.starts_with(reason), "{text}: {refused}");
        }
        assert!(read(&"x".repeat(NAME_BYTES_MAX + 1)).unwrap_err().starts_with("2049 bytes"));
    }

    #[test]
    fn a_name_belongs_to_one_caller() {
        let mut callers = callers(&[("a", &["envoy.mesh", "sidecar"])]);
        let b = callers.add(caller("b"));
        assert_eq!(&*callers.add_certificate(b, &"ENVOY.mesh".parse().unwrap()).unwrap_err().name, "a");
        assert_eq!(&*callers.add_listener(b, "sidecar").unwrap_err().name, "a");
    }

    #[test]
    fn each_part_of_a_request_needs_its_right() {
        let of = |may: &[Right]| Caller { may: may.iter().copied().collect(), ..caller("a") };
        for (operation, settles, has_limit, needs) in [
            (Operation::Consume(10), false, false, &[Right::Charge][..]),
            (Operation::Report(10), false, false, &[Right::Charge]),
            (Operation::Peek, false, false, &[Right::Peek]),
            (Operation::Refund(10), false, false, &[Right::Refund]),
            (Operation::Consume(10), true, false, &[Right::Settle]),
            (Operation::Peek, true, false, &[Right::Settle]),
            (Operation::Consume(10), false, true, &[Right::Charge, Right::Limits]),
        ] {
            assert_eq!(of(needs).check(operation, settles, has_limit), Ok(()), "{operation:?}");
            for missing in needs {
                let others: Vec<Right> = Right::ALL.into_iter().filter(|right| right != missing).collect();
                assert_eq!(of(&others).check(operation, settles, has_limit), Err(Refusal::Right(*missing)));
            }
        }
        for operation in [Operation::Consume(11), Operation::Report(11), Operation::Refund(11)] {
            assert_eq!(of(&Right::ALL).check(operation, false, false), Err(Refusal::Hits));
        }
    }

    #[test]
    fn every_refusal_has_a_place_and_a_word_of_its_own() {
        let mut words: Vec<_> = Refusal::ALL.map(Refusal::name).to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Refusal::ALL.len());
        assert!(Refusal::ALL.iter().enumerate().all(|(at, refusal)| refusal.index() == at));
    }

    #[test]
    fn a_star_is_only_at_the_end_of_a_domain() {
        for text in ["", "a*b", "**", "*a"] {
            assert!(Domains::new([text]).is_err(), "{text:?}");
        }
        let all = Domains::new(["*"]).unwrap();
        assert!(all.has("") && all.has("shop"));
        let domains = Domains::new(["b", "team/*", "a", "team/a/*", "b"]).unwrap();
        assert_eq!(domains.to_string(), "a, b, team/*");
    }

    proptest! {
        #[test]
        fn a_domain_is_found_as_by_trying_each_text(texts in prop::collection::vec("[ab]{0,4}\\*?", 0..30), domain in "[ab]{0,5}") {
            let texts: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
            let expected = texts.iter().any(|text| match text.strip_suffix('*') {
                Some(prefix) => domain.starts_with(prefix),
                None => **text == *domain,
            });
            prop_assert_eq!(Domains::new(texts).unwrap().has(&domain), expected);
        }
    }
}
