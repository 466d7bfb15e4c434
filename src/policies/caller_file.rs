//! Files of callers: who may charge which domain.
//!
//! ```yaml
//! callers:
//!   - name: team-a
//!     certificates: ["spiffe://mesh.example/ns/team-a/*", envoy.team-a.example]
//!     domains: ["team-a/*", shared]
//!     may: [charge, peek]           # and refund, settle, limits
//!     hits_max: 100                 # of one descriptor
//!   - {name: local, listeners: [sidecar], domains: ["*"], may: [charge, peek, refund, settle, limits]}
//! ```
//!
//! Not here: what a caller is and may do (engine/callers.rs), and when the file is read again (app).

mod keys;

use std::collections::HashSet;
use std::path::Path;

use weir_engine::callers::{Caller, CallerId, Callers, CertificateName, Domains, Right, Rights};
use weir_engine::words::printable;
use weir_text::quoted;
use weir_text::yaml::{NodeId, Value};

pub use keys::KINDS;
pub(super) use keys::{caller, file};

use super::fields::Fields;
use super::form::Key;
use super::keys::Named;
use super::state::{FileReader, Reported};
use super::{DOMAIN_BYTES_MAX, Position, Problems, instead, single};

/// The largest file of callers, in bytes.
pub const CALLER_FILE_BYTES_MAX: usize = 4 << 20;
/// The most callers of a file.
pub const CALLERS_MAX: usize = 10_000;
/// The most certificates, and the most listeners, of a caller.
pub const NAMES_OF_CALLER_MAX: usize = 64;
/// The most domains of a caller.
pub const DOMAINS_OF_CALLER_MAX: usize = 256;
/// The longest name of a caller, in bytes.
pub const CALLER_NAME_BYTES_MAX: usize = 64;

/// What the settings give, by which callers can be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The names of the listeners.
    pub listeners: Vec<String>,
    /// Whether clients need a certificate.
    pub has_client_ca: bool,
}

/// Reads a file of callers. Without `listening` it is checked by itself.
///
/// # Errors
/// A file that cannot be read, is too large or has no line end at its end, and every problem of its callers.
pub fn read_callers(path: &Path, listening: Option<&Listening>) -> Result<Callers, Problems> {
    let (name, text) = single::read(path, CALLER_FILE_BYTES_MAX)?;
    let callers = parse_callers(&name, &text, listening)?;
    // The beginning of a domain can be another domain.
    if !text.ends_with('\n') {
        let message = "the last line has no line end, so a part of the file can be missing".to_owned();
        return Err(single::unreadable(&name, None, message));
    }
    Ok(callers)
}

/// Reads callers from a text.
///
/// ```
/// use weir_policies::parse_callers;
///
/// let good = "callers: [{name: a, certificates: [envoy.mesh], domains: [shop], may: [charge]}]";
/// assert_eq!(parse_callers("callers.yaml", good, None).unwrap().list().len(), 1);
/// assert_eq!(
///     parse_callers("callers.yaml", &good.replace("[charge]", "[chrage]"), None).unwrap_err().to_string(),
///     "callers.yaml:1:72: no right \"chrage\", did you mean \"charge\"?"
/// );
/// ```
///
/// # Errors
/// Every problem of the callers.
pub fn parse_callers(name: &str, text: &str, listening: Option<&Listening>) -> Result<Callers, Problems> {
    single::parse_within(&name.into(), text, CALLER_FILE_BYTES_MAX, &KINDS, |reader| callers(reader, listening))
}

/// The content of a file of callers.
fn callers(reader: &mut FileReader<'_>, listening: Option<&Listening>) -> Result<Callers, Reported> {
    let items = reader.list_of_file(&file::KIND, file::CALLERS, (CALLERS_MAX, "nobody may do anything"))?;
    let (mut callers, mut names) = (Callers::default(), HashSet::new());
    for item in items {
        if reader.is_full() {
            break;
        }
        // A problem is reported already.
        let _ = reader.caller(item, listening, &mut names, &mut callers);
    }
    Ok(callers)
}

impl FileReader<'_> {
    fn caller(
        &mut self,
        id: NodeId,
        listening: Option<&Listening>,
        names: &mut HashSet<String>,
        callers: &mut Callers,
    ) -> Result<(), Reported> {
        let fields = self.fields(id, &caller::KIND)?;
        let name = self.name_of_caller(&fields, names);
        let domains = self.domains(&fields);
        let may = self.rights(&fields);
        let hits_max = self.read(&fields, caller::HITS_MAX);
        let certificates = self.texts(&fields, caller::CERTIFICATES, NAMES_OF_CALLER_MAX);
        let listeners = self.texts(&fields, caller::LISTENERS, NAMES_OF_CALLER_MAX);
        let (certificates, listeners) = (certificates?, listeners?);
        if certificates.is_empty() && listeners.is_empty() {
            let message = "a caller without certificates and listeners: nobody is this caller";
            return Err(self.report(fields.at, message));
        }
        let (name, domains, may, hits_max) = (name?, domains?, may?, hits_max?.unwrap_or(u32::MAX));
        if hits_max == 0 {
            let message = "hits_max is 0: write 1 or more, or leave out the rights to charge and to refund".to_owned();
            return Err(self.report_value(&fields, caller::HITS_MAX, message));
        }
        let of = callers.add(Caller { name: name.into(), domains, may, hits_max });
        for (at, text) in certificates {
            self.certificate(at, &text, listening, of, callers);
        }
        for (at, text) in listeners {
            self.listener(at, &text, listening, of, callers);
        }
        Ok(())
    }

    fn name_of_caller(&mut self, fields: &Fields, names: &mut HashSet<String>) -> Result<String, Reported> {
        let Some(name) = self.read(fields, caller::NAME)? else {
            return Err(self.report_key(fields, caller::NAME, "a caller without a name".to_owned()));
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@/".contains(&byte);
        if name.len() > CALLER_NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            let message = format!("a name has at most {CALLER_NAME_BYTES_MAX} letters, digits and any of - _ . @ /");
            return Err(self.report_value(fields, caller::NAME, message));
        }
        if !names.insert(name.clone()) {
            return Err(self.report_value(fields, caller::NAME, format!("two callers have the name {name}")));
        }
        Ok(name)
    }

    fn domains(&mut self, fields: &Fields) -> Result<Domains, Reported> {
        let texts = self.texts(fields, caller::DOMAINS, DOMAINS_OF_CALLER_MAX)?;
        if texts.is_empty() {
            let message = "a caller without domains: write domains: [\"*\"] for all of them".to_owned();
            return Err(self.report_key(fields, caller::DOMAINS, message));
        }
        let mut result = Ok(());
        for (at, text) in &texts {
            let read = match text.len() {
                ..=DOMAIN_BYTES_MAX => Domains::new([text.as_str()]).map(drop).map_err(|(_, why)| why.to_string()),
                bytes => Err(format!("a domain has {bytes} bytes: at most {DOMAIN_BYTES_MAX}")),
            };
            if let Err(reason) = read {
                result = Err(self.report(*at, reason));
            }
        }
        result?;
        let domains = Domains::new(texts.iter().map(|(_, text)| text.as_str()));
        domains.map_err(|(_, why)| self.report_value(fields, caller::DOMAINS, why.to_string()))
    }

    fn rights(&mut self, fields: &Fields) -> Result<Rights, Reported> {
        let texts = self.texts(fields, caller::MAY, Right::ALL.len())?;
        if texts.is_empty() {
            let message = format!("a caller without rights: write may with some of {}", Right::NAMES.join(", "));
            return Err(self.report_key(fields, caller::MAY, message));
        }
        let mut result = Ok(());
        let mut rights = Vec::new();
        for (at, text) in texts {
            match Right::named(&text) {
                Some(right) => rights.push(right),
                None => {
                    let message = format!("no right {}{}", quoted(&text), instead(&text, &Right::NAMES));
                    result = Err(self.report(at, message));
                }
            }
        }
        result.map(|()| rights.into_iter().collect())
    }

    fn certificate(
        &mut self,
        at: Position,
        text: &str,
        listening: Option<&Listening>,
        of: CallerId,
        callers: &mut Callers,
    ) {
        let problem = match text.parse::<CertificateName>() {
            _ if listening.is_some_and(|listening| !listening.has_client_ca) => {
                "certificates need listen.tls.client_ca_file: without it clients show none".to_owned()
            }
            Err(reason) => format!("certificate {}: {reason}", quoted(text)),
            Ok(name) => match callers.add_certificate(of, &name) {
                Ok(()) => return,
                Err(taken) => format!("the caller {} has the certificate {name} already", taken.name),
            },
        };
        self.report(at, problem);
    }

    fn listener(
        &mut self,
        at: Position,
        text: &str,
        listening: Option<&Listening>,
        of: CallerId,
        callers: &mut Callers,
    ) {
        let known: Option<Vec<&str>> =
            listening.map(|listening| listening.listeners.iter().map(String::as_str).collect());
        let problem = match known {
            Some(known) if !known.contains(&text) => format!("no listener {}{}", quoted(text), instead(text, &known)),
            _ => match callers.add_listener(of, text) {
                Ok(()) => return,
                Err(taken) => format!("the caller {} has the listener {} already", taken.name, printable(text)),
            },
        };
        self.report(at, problem);
    }

    /// The texts of a list, with their places. None if there is no list.
    fn texts(
        &mut self,
        fields: &Fields,
        key: Key<Option<Vec<NodeId>>>,
        most: usize,
    ) -> Result<Vec<(Position, String)>, Reported> {
        let items = self.read(fields, key)?.unwrap_or_default();
        if items.len() > most {
            let message = format!("{} has {} items: at most {most}", key.name(), items.len());
            return Err(self.report_value(fields, key, message));
        }
        let (mut texts, mut result) = (Vec::new(), Ok(()));
        for item in items {
            let node = self.document.node(item);
            match &node.value {
                Value::Scalar { text, .. } if !node.is_null() && !text.is_empty() => {
                    texts.push((node.position, text.to_string()));
                }
                _ => {
                    let message = format!("an item of {} must be text, not {}", key.name(), node.describe());
                    result = Err(self.report(node.position, message));
                }
            }
        }
        result.map(|()| texts)
    }
}
