//! `weir explain`: which rule each descriptor of a request meets, why, and the key of its state.
//!
//! The engine matches the entries. The outline of the files has only the places, and the keys that would have matched.

use std::io::{self, Write};
use std::path::Path;

use weir_api::overrides::ShownOverride;
use weir_engine::descriptor::{as_entries, spell_entries};
use weir_engine::key::{write_key, write_tag};
use weir_engine::policy::{Match, Step};
use weir_engine::weigh::Unweighable;
use weir_engine::weighed::Weighed;
use weir_engine::words::{counted, printable};
use weir_engine::{Domain, Entry, Hits, Matcher, Micros, Override, Overrides, Phase, Rule, Term};
use weir_policies::files::Source;
use weir_policies::{Dialect, DomainOutline, Loaded, Outline, OverlayUse, load, read_callers};
use weir_store::{Clock as _, SystemClock};
use weir_text::{instant_text, nearest, next_begin, phase};

use super::admin::ServerArguments;
use super::check::{Failed, THE_SERVERS, describe, describe_limit, domain_wide, label, of_server, some_of};
use super::overridden;
use super::rows::{self, RowOfServer};
use super::served::{self, Served};

/// Writes which rules a request with these descriptors meets. A request without a rule is not an error.
///
/// A descriptor is its entries, keys and values, in order.
///
/// # Errors
/// When policies are wrong; then nothing is written. When writing fails.
pub fn run(
    source: impl Into<Source>,
    dialect: Dialect,
    domain: &str,
    descriptors: &[Vec<(String, String)>],
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let loaded = load(&source.into(), dialect).map_err(Failed::Policies)?;
    write(&loaded, THE_SERVERS, &[], &[], domain, descriptors, out)?;
    for warning in loaded.overlays.iter().flat_map(OverlayUse::warnings) {
        writeln!(out, "{}", printable(&warning))?;
    }
    Ok(())
}

/// Writes what a caller of a file may do in a domain. `name` is its name, one of its certificates, or its listener.
///
/// # Errors
/// When the file is wrong or has no such caller, or when writing fails.
pub fn caller(path: &Path, name: &str, domain: &str, out: &mut dyn Write) -> Result<(), Failed> {
    let callers = read_callers(path, None).map_err(Failed::Policies)?;
    let names = || callers.list().iter().map(|caller| &*caller.name);
    let named = callers.list().iter().find(|caller| &*caller.name == name);
    // A name of a certificate, or a listener.
    let is_uri = name.contains("://");
    let of_certificate: Box<str> = if is_uri { name.into() } else { name.to_ascii_lowercase().into() };
    let known_by = || callers.find(&[of_certificate], name).ok();
    let Some(caller) = named.or_else(known_by) else {
        let hint = match nearest(name, names()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there is {}", some_of(names().map(printable))),
        };
        return Err(Failed::Caller(format!(
            "{}: no caller, certificate or listener {name:?}, {hint}",
            printable(&path.display().to_string())
        )));
    };
    let file = printable(&path.display().to_string());
    let may = match caller.domains.has(domain) {
        false => format!("nothing in this domain: its domains are {}", printable(&caller.domains.to_string())),
        true => {
            let rights: Vec<_> = caller.may.names().collect();
            let most = if caller.hits_max == Hits::MAX {
                String::new()
            } else {
                format!(", at most {} of a descriptor", counted(caller.hits_max, "hit"))
            };
            format!("{} in this domain{most}", rights.join(", "))
        }
    };
    let by = if caller.name.as_ref() == name { String::new() } else { format!(", by {}", printable(name)) };
    writeln!(out, "caller {}{by}   {file}\n  may {may}\n", caller.name)?;
    Ok(())
}

/// As [`run`], with the policies in force on a running server. Writes to `notes` if the server refuses newer policies.
///
/// # Errors
/// If the server returns no policies, if the token is not for the domain, or if writing fails.
pub fn run_served(
    server: &ServerArguments,
    domain: &str,
    descriptors: &[Vec<(String, String)>],
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), Failed> {
    let Served { loaded, on_error, problems, domains, .. } = served::policies(server)?;
    if let Some(domains) = domains.filter(|domains| !domains.has(domain)) {
        return Err(Failed::Unseen(printable(&domains.to_string()), domain.to_owned()));
    }
    let overrides = overridden::of_server(server).unwrap_or_else(|error| {
        // A failure to write notes does not matter.
        let _ = writeln!(notes, "weir: overrides are unknown: {error}");
        Vec::new()
    });
    let of_domain = loaded.policies.domain(domain);
    let row = |entries: &Vec<(String, String)>| {
        let Weighed { met, entry, .. } = loaded.policies.weigh(of_domain?, &as_entries(entries), None).ok()?;
        let others: Vec<_> = entries.iter().filter(|(key, _)| Some(key.as_str()) != entry).cloned().collect();
        met.rule?.rows.as_ref().map(|_| rows::of_server(server, domain, &others))
    };
    let rows: Vec<Option<RowOfServer>> = descriptors.iter().map(row).collect();
    write(&loaded, &of_server(&on_error), &overrides, &rows, domain, descriptors, out)?;
    if !problems.is_empty() {
        writeln!(notes, "weir: newer policies are refused: weir check --server {} prints why", server.server)?;
    }
    Ok(())
}

fn write(
    loaded: &Loaded,
    servers: &str,
    overrides: &[ShownOverride],
    rows: &[Option<RowOfServer>],
    domain: &str,
    descriptors: &[Vec<(String, String)>],
    out: &mut dyn Write,
) -> io::Result<()> {
    let of_domain: Vec<(&ShownOverride, Override)> = overrides
        .iter()
        .filter(|one| one.domain == domain)
        .filter_map(|one| Some((one, overridden::as_set(one)?)))
        .collect();
    let (shown, set): (Vec<&ShownOverride>, Vec<Override>) = of_domain.into_iter().unzip();
    let fitted = &Overrides::of(&loaded.policies, &set);
    let outline = loaded.domains.iter().find(|outline| outline.name == domain);
    let (Some(outline), Some(found)) = (outline, loaded.policies.domain(domain)) else {
        return unknown_domain(loaded, domain, out);
    };
    writeln!(out, "domain {}   {}{}", printable(domain), outline.place, domain_wide(found, servers))?;
    let sent: Vec<Vec<Entry<'_>>> = descriptors.iter().map(|pairs| as_entries(pairs)).collect();
    let weighed: Vec<_> = sent.iter().map(|entries| loaded.policies.weigh(found, entries, None)).collect();
    let descriptors: &Vec<Vec<Entry<'_>>> =
        &sent.iter().zip(&weighed).map(|(sent, weighed)| without(sent, weighed)).collect();
    let request = Request { loaded, servers, shown: &shown, fitted, rows, outline, domain: found, descriptors };
    for (i, (entries, weighed)) in sent.iter().zip(&weighed).enumerate() {
        writeln!(out)?;
        writeln!(out, "{}", format!("descriptor {}   {}", i + 1, joined(entries)).trim_end())?;
        match weighed {
            Ok(weighed) => {
                if let Some(factor) = weighed.met.factor {
                    writeln!(out, "  {}", factor_in_words(factor, weighed.entry, entries))?;
                }
                request.explain(i, out)?;
            }
            Err(unweighable) => writeln!(out, "  an error: {unweighable}")?,
        }
    }
    Ok(())
}

fn unknown_domain(loaded: &Loaded, domain: &str, out: &mut dyn Write) -> io::Result<()> {
    let names = || loaded.domains.iter().map(|outline| outline.name.as_str());
    let hint = match nearest(domain, names()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("there is {}", some_of(names().map(printable))),
    };
    writeln!(out, "no domain {domain:?}, {hint}")?;
    writeln!(out, "a request of an unknown domain passes")
}

struct Request<'r> {
    loaded: &'r Loaded,
    servers: &'r str,
    shown: &'r [&'r ShownOverride],
    fitted: &'r Overrides,
    /// The row of each descriptor whose rule has rows, from a server.
    rows: &'r [Option<RowOfServer>],
    outline: &'r DomainOutline,
    domain: &'r Domain,
    descriptors: &'r [Vec<Entry<'r>>],
}

impl<'r> Request<'r> {
    fn explain(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        let entries = &self.descriptors[number];
        let mut level = Level { above: None, below: &self.outline.descriptors };
        let steps = self.loaded.policies.trace(self.domain, entries);
        let width = entries.iter().map(|entry| spelled(*entry).chars().count()).max().unwrap_or(0);
        for (entry, step) in entries.iter().zip(&steps) {
            let Some(met) = level.below.iter().find(|outline| is_met(outline, *entry, step)) else {
                break;
            };
            let how = match step {
                Step::Exact => "key and value".to_owned(),
                Step::Listed(_) => "value in the list".to_owned(),
                Step::Network(network, _) => format!("network {network}"),
                Step::Pattern(pattern) => format!("pattern {}", printable(pattern.as_str())),
                Step::Regex(name) => format!("regex {}", printable(name.strip_prefix('~').unwrap_or(name))),
                Step::KeyAlone => "key alone".to_owned(),
            };
            let shared = if met.share_threshold { ", all as one" } else { "" };
            let before = level.others(met, *entry);
            writeln!(out, "  {:width$}   {how}{shared}   {}{before}", spelled(*entry), met.note.place())?;
            level = Level { above: Some(met), below: &met.descriptors };
        }
        if let Some(entry) = entries.get(steps.len()) {
            writeln!(out, "  {:width$}   {}", spelled(*entry), level.why_not(*entry))?;
        }

        let met = self.loaded.policies.find(self.domain, entries);
        match met.rule {
            Some(rule) => self.rule(number, rule, &met, out),
            None => writeln!(out, "  no rule, so it passes{}", self.nearby(entries, steps.len(), &level)),
        }
    }

    fn rule(&self, number: usize, rule: &Rule, met: &Match<'_>, out: &mut dyn Write) -> io::Result<()> {
        let entries = &self.descriptors[number];
        if let Some(place) = self.loaded.places.get(rule.id as usize) {
            writeln!(out, "  rule {}   {place}", printable(&rule.path))?;
        }
        for (i, (amount, details)) in describe(rule).into_iter().enumerate() {
            writeln!(out, "    {}", format!("{amount}   {details}").trim_end())?;
            let limit = rule.limits.get(i);
            let name = limit.and_then(|limit| limit.name.as_deref());
            if let Some(by) = name.and_then(|name| self.replaced_by(name)) {
                writeln!(out, "      left out: descriptor {} replaces it by name", by + 1)?;
            } else if let Some(limit) = limit {
                let mut key = String::new();
                write_key(&mut key, &self.domain.name, entries.iter().copied(), &met.shared, limit);
                writeln!(out, "      key {}", printable(&key))?;
                if let Some(term) = &limit.term {
                    writeln!(out, "      {}", applies(term, SystemClock.now()))?;
                }
            } else {
                writeln!(out, "      passes, and no state is kept")?;
            }
        }
        let mut tag = String::new();
        write_tag(&mut tag, &self.domain.name, entries.iter().copied(), &met.shared);
        let row = self.rows.get(number).and_then(Option::as_ref);
        if let Some((number, fitted)) = self.fitted.at(&tag) {
            let ShownOverride { until, by, reason, .. } = self.shown[number];
            let [until, by, reason] = [until, by, reason].map(|text| printable(text));
            writeln!(out, "    overridden until {until}, by {by}: {reason}")?;
            // The row's limits follow below.
            let has_row = row.is_some_and(|row| row.limits(rule).is_some());
            for (_, limit) in fitted.limits().iter().enumerate().filter(|(at, _)| !has_row || fitted.names(*at)) {
                let key = printable(&format!("{tag}{}", limit.id()));
                writeln!(out, "      {}\n        key {key}", describe_limit(limit))?;
            }
        }
        if let Some(row) = row {
            self.row(row, rule, &tag, out)?;
        }
        if !rule.limits.is_empty() {
            let on_error = match self.domain.on_error_of(Some(rule)) {
                Some((on_error, said_by)) => format!("{}, from the {}", on_error.name(), said_by.name()),
                None => self.servers.to_owned(),
            };
            writeln!(out, "    on_error {on_error}")?;
        }
        Ok(())
    }

    /// The row of a descriptor, and its limits in force. Leaves out the limits that an override names. [rw-3]
    fn row(&self, row: &RowOfServer, rule: &Rule, tag: &str, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "    row: {}", row.line())?;
        let limits = row.limits(rule);
        if let Some(unused) = row.unused() {
            return writeln!(out, "      not used: {unused}");
        }
        let is_overridden = |at: usize| self.fitted.at(tag).is_some_and(|(_, fitted)| fitted.names(at));
        let limits = rule.limits.iter().zip(limits.into_iter().flatten()).enumerate();
        for (_, (written, limit)) in limits.filter(|(at, _)| !is_overridden(*at)) {
            match limit {
                Some(limit) => {
                    let key = printable(&format!("{tag}{}", limit.id()));
                    writeln!(out, "      {}\n        key {key}", describe_limit(&limit))?;
                }
                None => {
                    let name = written.name.as_deref().map(|name| format!("   name {}", printable(name)));
                    writeln!(out, "      unlimited{}", name.unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }

    /// The index of the descriptor whose rule replaces limits of that name.
    fn replaced_by(&self, name: &str) -> Option<usize> {
        self.descriptors.iter().position(|entries| {
            let rule = self.loaded.policies.find(self.domain, entries).rule;
            rule.is_some_and(|rule| rule.replaces.iter().any(|replaced| &**replaced == name))
        })
    }

    /// A remark on the nearest rule, if the descriptor is too short or too long for it.
    fn nearby(&self, entries: &[Entry<'_>], matched: usize, level: &Level<'_>) -> String {
        if entries.is_empty() {
            return ": a descriptor without entries matches nothing".to_owned();
        }
        if let Some((rule, key)) = self.loaded.policies.unweighed(self.domain, entries)
            && let Some(place) = self.loaded.places.get(rule.id as usize)
        {
            return format!(
                ": the rule at {place} does not weigh by {key:?}, so this descriptor is one level deeper than the rule"
            );
        }
        if matched == entries.len() {
            if level.below.is_empty() {
                return ": this descriptor of the policy has no limit".to_owned();
            }
            return format!(": rules are deeper, below {}", some_of(level.below.iter().map(label)));
        }
        match level.above {
            Some(above) if above.note.rule.is_some() => {
                format!(
                    ": the rule at {} counts only for a descriptor that ends with {}",
                    above.note.place(),
                    label(above)
                )
            }
            _ => String::new(),
        }
    }
}

/// A place in the outline: the reached descriptor and the next level.
struct Level<'o> {
    above: Option<&'o Outline>,
    below: &'o [Outline],
}

impl Level<'_> {
    /// A remark on other descriptors that match the entry and come later. Never lists the key alone, which is always
    /// last.
    fn others(&self, met: &Outline, entry: Entry<'_>) -> String {
        let of_key = self.below.iter().filter(|outline| &*outline.key == entry.key && !std::ptr::eq(*outline, met));
        let matching = of_key.filter(|outline| outline.value.as_ref().is_some_and(|value| value.matches(entry.value)));
        let mut places = matching.map(|outline| format!("{} at {}", label(outline), outline.note.place())).peekable();
        if places.peek().is_none() { String::new() } else { format!("   before {}", some_of(places)) }
    }

    /// Why an entry matches nothing at this level, and which descriptors the level has.
    fn why_not(&self, entry: Entry<'_>) -> String {
        if self.below.is_empty() {
            return "no descriptors are deeper here".to_owned();
        }
        let mut of_key = self.below.iter().filter(|outline| &*outline.key == entry.key).peekable();
        if of_key.peek().is_some() {
            return format!("no such value, there is {}", some_of(of_key.map(label)));
        }
        match nearest(entry.key, self.below.iter().map(|outline| &*outline.key)) {
            Some(near) => format!("no such key, did you mean {near:?}?"),
            None => format!("no such key, there is {}", some_of(self.below.iter().map(label))),
        }
    }
}

/// Whether the engine's step for an entry led to this descriptor.
fn is_met(outline: &Outline, entry: Entry<'_>, step: &Step<'_>) -> bool {
    let name = outline.value.as_ref().map(Matcher::name);
    // A pattern in a key matches the descriptor as a whole.
    if let Step::Pattern(pattern) = step
        && outline.key.contains('*')
    {
        let is_whole = match &name {
            Some(value) => format!("{}_{value}", outline.key) == pattern.as_str(),
            None => *outline.key == *pattern.as_str(),
        };
        if is_whole {
            return true;
        }
    }
    let met = match step {
        Step::Exact => Some(entry.value),
        Step::Pattern(pattern) => Some(pattern.as_str()),
        Step::Listed(name) | Step::Network(_, name) | Step::Regex(name) => Some(*name),
        Step::KeyAlone => None,
    };
    &*outline.key == entry.key && name.as_deref() == met
}

/// Whether a term holds now, and the next instant at which that changes.
fn applies(term: &Term, now: Micros) -> String {
    let Phase { applies, until } = term.phase(now, |during| phase(during, now));
    match next_begin(term, now) {
        Some(_) if applies && until == Term::NO_END => "applies now".to_owned(),
        Some(_) if applies => format!("applies now, until {}", instant_text(until)),
        Some(begin) => format!("does not apply now, next from {}", instant_text(begin)),
        None => "does not apply any more".to_owned(),
    }
}

/// The entries without the one that only weighs.
fn without<'e>(sent: &[Entry<'e>], weighed: &Result<Weighed<'_>, Unweighable>) -> Vec<Entry<'e>> {
    let entry = weighed.as_ref().ok().and_then(|weighed| weighed.entry);
    sent.iter().copied().filter(|one| Some(one.key) != entry).collect()
}

/// The factor of the hits of a descriptor with these entries, and the entry that selects it.
fn factor_in_words(factor: Hits, by: Option<&str>, entries: &[Entry<'_>]) -> String {
    match entries.iter().find(|entry| Some(entry.key) == by) {
        Some(entry) => format!("hits times {factor}, by {}, which is no part of the descriptor below", spelled(*entry)),
        None => format!("hits times {factor}, the default of weigh"),
    }
}

fn spelled(entry: Entry<'_>) -> String {
    printable(&spell_entries([entry]))
}

fn joined(entries: &[Entry<'_>]) -> String {
    entries.iter().map(|entry| spelled(*entry)).collect::<Vec<_>>().join(", ")
}
