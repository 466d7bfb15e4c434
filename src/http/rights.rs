//! What the holder of a token may do at the admin listener, and for which domains: a line of `admin.token_file`.
//!
//! ```text
//! ann  7Jq0mQ0y3n2mB4hT                                   changes and looks, in all domains
//! bob  sha256:<64 hexadecimal digits>  look,change  team-a/*,shared
//! ops  sha256:<64 hexadecimal digits>  all          *
//! ```
//!
//! Not here: when the file is read, and how a token is compared (token.rs).

use axum::http::StatusCode;
use axum::response::Response;
use sha2::{Digest as _, Sha256};
use weir_engine::callers::{DomainError, Domains};
use weir_text::nearest;

use super::json_error;

/// The shortest and the longest token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 4_096;
/// The longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The name of the caller if no token is needed.
const ANYONE: &str = "anyone";
/// The beginning of a token that is written as its hash.
const HASHED: &str = "sha256:";
/// The earlier word for all rights in all domains.
const TAP_VALUES: &str = "tap-values";
const ALL: &str = "all";

pub(super) type TokenHash = [u8; 32];

weir_engine::named! {
    /// What a token permits.
    pub enum Right {
        /// To see keys of callers.
        Look = "look",
        /// To see the values of requests that a tap otherwise hides.
        Tap = "tap",
        /// To set and remove overrides and rows, and to reset states.
        Change = "change",
    }
}

/// The holder of a token, as an extension of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) name: String,
    /// The hash of its token.
    pub(super) hash: TokenHash,
    rights: Vec<Right>,
    domains: Domains,
}

/// Why a caller that lacks a right or a domain is refused. Also an extension of that answer.
#[derive(Clone, Debug)]
pub(super) struct Lacking(pub(super) String);

impl From<Lacking> for Response {
    fn from(lacking: Lacking) -> Self {
        let mut refusal = json_error(StatusCode::FORBIDDEN, &lacking.0);
        refusal.extensions_mut().insert(lacking);
        refusal
    }
}

impl Caller {
    /// The caller if there is no file of tokens.
    pub(super) fn anyone() -> Self {
        // No token is compared with this hash.
        Self::of_all_domains(ANYONE, TokenHash::default(), &[Right::Look, Right::Change])
    }

    fn of_all_domains(name: &str, hash: TokenHash, rights: &[Right]) -> Self {
        Self { name: name.to_owned(), hash, rights: rights.to_vec(), domains: Domains::all() }
    }

    pub(super) fn may(&self, right: Right) -> bool {
        self.rights.contains(&right)
    }

    pub(super) fn has(&self, domain: &str) -> bool {
        self.domains.has(domain)
    }

    pub(super) fn has_all_domains(&self) -> bool {
        self.domains.are_all()
    }

    /// # Errors
    /// If the caller lacks this right.
    pub(super) fn check_right(&self, right: Right) -> Result<(), Lacking> {
        let reason = || format!("the token {} lacks the right {:?} in admin.token_file", self.name, right.name());
        if self.may(right) { Ok(()) } else { Err(Lacking(reason())) }
    }

    /// Checks that this caller may see metrics, which are of all domains.
    ///
    /// # Errors
    /// If it has some domains only.
    pub(super) fn check_metrics(&self) -> Result<(), Lacking> {
        let reason = || format!("the token {} is not for all domains, and the metrics are of all domains", self.name);
        if self.has_all_domains() { Ok(()) } else { Err(Lacking(reason())) }
    }

    /// The domains of this caller, as in its line. None: all of them.
    pub(super) fn domains(&self) -> Option<Vec<String>> {
        (!self.has_all_domains()).then(|| self.domains.texts().collect())
    }

    /// Checks that a request is about a domain of this caller. A request without a domain is about all.
    ///
    /// # Errors
    /// If the domain is not the caller's.
    pub(super) fn check(&self, domain: Option<&str>) -> Result<(), Lacking> {
        let name = &self.name;
        match domain {
            Some(domain) if self.has(domain) => Ok(()),
            Some(domain) => Err(Lacking(format!("the token {name} is not for the domain {domain:?}"))),
            None if self.has_all_domains() => Ok(()),
            None => Err(Lacking(format!("the token {name} is not for all domains: name one of its own"))),
        }
    }
}

/// Reads a line of a file of tokens. None for an empty line.
///
/// # Errors
/// The reason. It quotes only words that are meant to be rights, because a token can be in the wrong place.
pub(super) fn parse(line: &[u8]) -> Result<Option<Caller>, String> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let read = match (words.next(), words.next(), words.next(), words.next(), words.next()) {
        (None, ..) => return Ok(None),
        (Some(name), Some(token), None, ..) => {
            Caller::of_all_domains(name_of(name)?, hash(token)?, &[Right::Look, Right::Change])
        }
        (Some(name), Some(token), Some(word), None, _) if word == TAP_VALUES.as_bytes() => {
            Caller::of_all_domains(name_of(name)?, hash(token)?, &Right::ALL)
        }
        (Some(name), Some(token), Some(rights), Some(domains), None) => {
            let (name, rights, domains) = (name_of(name)?.to_owned(), rights_of(rights)?, domains_of(domains)?);
            Caller { name, hash: hash(token)?, rights, domains }
        }
        (Some(_), Some(_), Some(rights), None, _) if rights_of(rights).is_ok() => {
            return Err("rights without domains: write NAME TOKEN RIGHTS DOMAINS, with * for all domains".to_owned());
        }
        _ => return Err("neither NAME TOKEN nor NAME TOKEN RIGHTS DOMAINS; lists have commas and no blanks".to_owned()),
    };
    Ok(Some(read))
}

fn name_of(word: &[u8]) -> Result<&str, String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(byte);
    let name = std::str::from_utf8(word).ok().filter(|_| word.len() <= NAME_BYTES_MAX && word.iter().all(is_plain));
    name.ok_or_else(|| format!("a name has at most {NAME_BYTES_MAX} letters, digits and any of - _ . @"))
}

fn rights_of(list: &[u8]) -> Result<Vec<Right>, String> {
    let mut rights = Vec::new();
    for word in list.split(|byte| *byte == b',') {
        match Right::ALL.iter().find(|right| right.name().as_bytes() == word) {
            Some(right) => rights.push(*right),
            None if word == ALL.as_bytes() => rights.extend(Right::ALL),
            None => return Err(no_right(word)),
        }
    }
    Ok(rights)
}

fn no_right(word: &[u8]) -> String {
    let names = Right::NAMES.into_iter().chain([ALL]);
    let meant = std::str::from_utf8(word).ok().and_then(|word| Some((word, nearest(word, names)?)));
    match meant {
        _ if word.is_empty() => "an empty right: write rights as look,change".to_owned(),
        Some((word, meant)) => format!("no right {word:?}, did you mean {meant:?}?"),
        None => "the third word is a list of rights: look, tap, change, or all".to_owned(),
    }
}

fn domains_of(list: &[u8]) -> Result<Domains, String> {
    let list = std::str::from_utf8(list).map_err(|_| "the fourth word is a list of domains, in UTF-8".to_owned())?;
    Domains::new(list.split(',')).map_err(|(at, why)| match why {
        DomainError::Wildcard => format!("domain {}: the only place of * is the end, as in team-a/*", at + 1),
        DomainError::Empty => format!("domain {}: empty, write domains as team-a/*,shared", at + 1),
    })
}

/// The hash of a token, which the file has as it is or as its hash.
fn hash(token: &[u8]) -> Result<TokenHash, String> {
    let (scheme, digits) = token.split_at(token.len().min(HASHED.len()));
    if scheme == HASHED.as_bytes() {
        let wrong = || format!("{HASHED} has 64 hexadecimal digits after it, this one has {} characters", digits.len());
        return from_hexadecimal(digits).ok_or_else(wrong);
    }
    // The text of a hash would otherwise be the token itself.
    if token.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"sha")) && token.contains(&b':') {
        return Err(format!("a token can be written as its hash only by {HASHED}, in lower case"));
    }
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(format!("a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes, this one has {}", token.len()));
    }
    Ok(hash_of(token))
}

pub(super) fn hash_of(token: &[u8]) -> TokenHash {
    Sha256::digest(token).into()
}

fn from_hexadecimal(digits: &[u8]) -> Option<TokenHash> {
    let mut hash = TokenHash::default();
    if digits.len() != 2 * hash.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret-s3cret-s3";
    /// Of the same token, by `sha256sum`.
    const HASH: &str = "dcc13f8ab4c3db29f898173c067d5920c88758064487bfca5c1c8a14f8de27bb";

    fn caller(line: &str) -> Caller {
        parse(line.as_bytes()).unwrap_or_else(|reason| panic!("{line}: {reason}")).expect("a token")
    }

    #[test]
    fn a_token_counts_for_its_rights_and_domains() {
        let rights = |caller: &Caller| Right::ALL.map(|right| caller.may(right));
        for (line, expected) in [
            (format!("ann {SECRET}"), [true, false, true]),
            (format!("ann {SECRET} tap-values"), [true; 3]),
            (format!("ann {SECRET} all *"), [true; 3]),
            (format!("ann {SECRET} look *"), [true, false, false]),
            (format!("ann\t{SECRET}  change,tap  *\r"), [false, true, true]),
        ] {
            let caller = caller(&line);
            assert_eq!((rights(&caller), caller.has_all_domains(), caller.has("x")), (expected, true, true), "{line}");
        }
        let of_team = caller(&format!("bob {SECRET} look team-a/*,shared"));
        for (domain, expected) in [
            ("team-a/shop", true),
            ("team-a/", true),
            ("shared", true),
            ("team-a", false),
            ("team-b/shop", false),
            ("shared2", false),
            ("Shared", false),
            ("", false),
        ] {
            assert_eq!(of_team.has(domain), expected, "{domain}");
            assert_eq!(of_team.check(Some(domain)).is_ok(), expected, "{domain}");
        }
        assert!(!of_team.has_all_domains() && of_team.check(None).is_err());
        assert!(of_team.check_right(Right::Look).is_ok() && of_team.check_right(Right::Change).is_err());
        assert_eq!(rights(&Caller::anyone()), [true, false, true]);
    }

    #[test]
    fn a_token_and_its_hash_are_the_same() {
        let hash = |token: &str| parse(format!("ann {token}").as_bytes()).map(|read| read.expect("a token").hash);
        assert_eq!(hash(SECRET), Ok(hash_of(SECRET.as_bytes())));
        assert_eq!(hash(&format!("sha256:{HASH}")), hash(SECRET));
        assert_eq!(hash(&format!("sha256:{}", HASH.to_uppercase())), hash(SECRET));
        let longest = "x".repeat(4_096);
        assert_eq!(hash(&longest), Ok(hash_of(longest.as_bytes())));
    }

    #[test]
    fn a_wrong_line_is_refused_with_what_was_meant_and_without_its_token() {
        let hashed = |text: &str| format!("ann {text}");
        for (line, reason) in [
            ("ann", "neither NAME TOKEN nor NAME TOKEN RIGHTS DOMAINS"),
            ("#", "neither NAME TOKEN"),
            (SECRET, "neither NAME TOKEN"),
            (&format!("ann more {SECRET}"), "neither NAME TOKEN"),
            (&format!("ann {SECRET} look"), "rights without domains"),
            (&format!("ann {SECRET} look, change *"), "neither NAME TOKEN"),
            (&format!("ann {SECRET} look * *"), "neither NAME TOKEN"),
            (&format!("ann {SECRET} lok *"), "no right \"lok\", did you mean \"look\"?"),
            (&format!("ann {SECRET} Look *"), "no right \"Look\", did you mean \"look\"?"),
            (&format!("ann {SECRET} look,chnage *"), "no right \"chnage\", did you mean \"change\"?"),
            (&format!("ann {SECRET} look, *"), "an empty right"),
            (&format!("ann {SECRET} ,look *"), "an empty right"),
            (&format!("ann {SECRET} tap-values *"), "the third word is a list of rights"),
            (&format!("ann 7Jq0mQ0y3n2mB4hT {SECRET} *"), "the third word is a list of rights"),
            (&format!("ann {SECRET} look a,,b"), "domain 2: empty"),
            (&format!("ann {SECRET} look a,"), "domain 2: empty"),
            (&format!("ann {SECRET} look a,te*m"), "domain 2: the only place of * is the end"),
            (&format!("ann {SECRET} look **"), "domain 1: the only place of * is the end"),
            (&format!("ann {}", &SECRET[..15]), "a token has 16 to 4096 bytes, this one has 15"),
            (&format!("ann {}", "x".repeat(4_097)), "a token has 16 to 4096 bytes, this one has 4097"),
            (&hashed("sha256:"), "sha256: has 64 hexadecimal digits after it, this one has 0"),
            (&hashed(&format!("sha256:{}", &HASH[1..])), "sha256: has 64 hexadecimal digits after it, this one has 63"),
            (&hashed(&format!("sha256:{HASH}0")), "sha256: has 64 hexadecimal digits after it, this one has 65"),
            (&hashed(&format!("sha256:{}g", &HASH[1..])), "sha256: has 64 hexadecimal digits"),
            (&hashed(&format!("sha256:+{}", &HASH[1..])), "sha256: has 64 hexadecimal digits"),
            (&hashed(&format!("SHA256:{HASH}")), "a token can be written as its hash only by sha256:"),
            (&hashed(&format!("sha512:{HASH}{HASH}")), "a token can be written as its hash only by sha256:"),
            (&format!("a/b {SECRET}"), "a name has"),
            (&format!("# {SECRET}"), "a name has"),
            (&format!("{} {SECRET}", "x".repeat(65)), "a name has"),
        ] {
            let refused = parse(line.as_bytes()).unwrap_err();
            let has_secret = [SECRET, "s3cret", "7Jq0", &HASH[1..9]].iter().any(|secret| refused.contains(secret));
            assert!(refused.starts_with(reason) && !has_secret, "{line:?}: {refused}");
        }
        assert!(parse(b"ann 0123456789abcdef look \xff*").unwrap_err().contains("UTF-8"));
        assert_eq!(parse(b" \t\r"), Ok(None));
    }
}
