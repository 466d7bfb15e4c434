//! Receipts of holds as callers keep them: their text, their place in an answer, and their place in a request. [hd-4]
//!
//! A text is a version, a dot, and base64 of the charges. It is not secret and has no signature: a receipt that is made by hand
//! gives back hits, as a refund does, and takes out permits of others. Not here: what a receipt settles (limiter).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use pbjson_types::value::Kind;
use prost::encoding::{decode_varint, encoded_len_varint};
use weir_engine::{Hits, Receipt, Window};
use weir_limiter::{HOLDS_MAX, HeldCharge, HeldIn, OverriddenLimit, Settle};

use super::convert::{Invalid, Problem};
use super::proto::RateLimitResponse;
use super::request::Request;

/// The value of the entry that returns a receipt if the caller has no receipt.
pub const NONE: &str = "none";
/// The beginning of a text. Another format of the rest gets another version, with one exception: charges of [`IS_OVERRIDDEN`]
/// came later. An earlier weir refuses a receipt with such a charge.
const VERSION: &str = "1.";
/// The most bytes of a charge: its key, its store with the number of a process, its hits, its time, its mark and the window of its
/// override.
const CHARGE_BYTES_MAX: usize = 8 + 1 + 8 + 5 + 8 + 8 + 7;
/// The longest text, in bytes. [hd-4]
pub const TEXT_BYTES_MAX: usize = VERSION.len() + (HOLDS_MAX * CHARGE_BYTES_MAX * 4).div_ceil(3);
/// Times and marks are smaller, like all numbers of decisions. [ar-2]
const NUMBERS: u64 = 1 << 53;

const SHARED: u8 = 0;
const PER_SECOND: u8 = 1;
const PROCESS: u8 = 2;
/// Bits beside the store: whether an override gave the limit its window, which is then the last number; and the position of the
/// limit in its rule.
const IS_OVERRIDDEN: u8 = 0x80;
const POSITION: u8 = 0x70;
const POSITION_SHIFT: u32 = 4;

/// The key of the only field of a receipt's metadata.
const FIELD: &str = "receipt";
/// The first part of the key of a receipt's metadata. The domain follows.
const OWNER: &str = "weir.";

pub fn text(holds: &[HeldCharge]) -> String {
    let bytes = charge_bytes(holds);
    let mut text = Vec::with_capacity(text_len(&bytes));
    put_text(&bytes, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// The length of the text of these charges.
const fn text_len(bytes: &[u8]) -> usize {
    VERSION.len() + (bytes.len() * 4).div_ceil(3)
}

fn put_text(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(VERSION.as_bytes());
    let start = out.len();
    out.resize(start + text_len(bytes) - VERSION.len(), 0);
    // It has the length of the text.
    let _ = BASE64_URL_SAFE_NO_PAD.encode_slice(bytes, &mut out[start..]);
}

fn charge_bytes(holds: &[HeldCharge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(holds.len() * CHARGE_BYTES_MAX);
    for HeldCharge { key, store, receipt, overridden } in holds {
        let more = overridden.map_or(0, |one| IS_OVERRIDDEN | one.position << POSITION_SHIFT & POSITION);
        bytes.extend_from_slice(&key.to_be_bytes());
        match store {
            HeldIn::Shared => bytes.push(SHARED | more),
            HeldIn::PerSecond => bytes.push(PER_SECOND | more),
            HeldIn::Process(process) => {
                bytes.push(PROCESS | more);
                bytes.extend_from_slice(&process.to_be_bytes());
            }
        }
        for number in [receipt.hits.into(), receipt.at, receipt.mark] {
            put_varint(number, &mut bytes);
        }
        if let Some(one) = overridden {
            put_varint(one.window.us(), &mut bytes);
        }
    }
    bytes
}

/// Unlike that of prost it makes no call for each byte.
fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Reads the output of [`text`]. None if the text is not a receipt of this version.
pub fn parse(text: &str) -> Option<Vec<HeldCharge>> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.strip_prefix(VERSION)?).ok()?;
    let mut rest = &bytes[..];
    // Most receipts have one charge.
    let mut holds = Vec::with_capacity(1 + bytes.len() / (2 * CHARGE_BYTES_MAX));
    while !rest.is_empty() {
        if holds.len() == HOLDS_MAX {
            return None;
        }
        holds.push(charge(&mut rest)?);
    }
    (!holds.is_empty()).then_some(holds)
}

fn charge(rest: &mut &[u8]) -> Option<HeldCharge> {
    let key = fixed(rest)?;
    let (&first, others) = rest.split_first()?;
    *rest = others;
    let store = match first & !(IS_OVERRIDDEN | POSITION) {
        SHARED => HeldIn::Shared,
        PER_SECOND => HeldIn::PerSecond,
        PROCESS => HeldIn::Process(fixed(rest)?),
        _ => return None,
    };
    let mut number = || decode_varint(rest).ok().filter(|number| *number < NUMBERS);
    let hits = Hits::try_from(number()?).ok().filter(|hits| *hits > 0)?;
    let receipt = Receipt { hits, at: number()?, mark: number()? };
    let position = (first & POSITION) >> POSITION_SHIFT;
    let overridden = match first & IS_OVERRIDDEN {
        0 if position > 0 => return None,
        0 => None,
        _ => Some(OverriddenLimit { position, window: Window::from_micros(number()?).ok()? }),
    };
    Some(HeldCharge { key, store, receipt, overridden })
}

fn fixed(rest: &mut &[u8]) -> Option<u64> {
    let (&number, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(u64::from_be_bytes(number))
}

/// Removes the entries with receipts from a request, so that no rule, key or log sees them. Returns what they settle.
/// `has_holds` returns whether a domain has holds. In other domains such an entry is like any other. [hd-5]
///
/// # Errors
/// When an entry is not a receipt, when it differs from another receipt of the request, or when its descriptor
/// gives hits back.
pub fn take(
    request: &mut Request<'_>,
    receipt_key: &str,
    has_holds: impl FnOnce(&str) -> bool,
) -> Result<Option<Box<Settle>>, Invalid> {
    // Few requests settle.
    if !has_receipt(request, receipt_key) || !has_holds(request.domain) {
        return Ok(None);
    }
    let mut first = None;
    let mut settle = Settle::default();
    for (i, descriptor) in request.descriptors.iter_mut().enumerate() {
        let Some(j) = descriptor.entries.iter().position(|entry| entry.key == receipt_key) else { continue };
        let value = descriptor.entries.remove(j).value;
        descriptor.receipt_at = u8::try_from(j).ok();
        let refused = |reason| {
            Err(Invalid { field: format!("descriptors[{i}].entries[{j}].value"), problem: Problem::Receipt(reason) })
        };
        match first {
            None if value == NONE => {}
            None => match parse(value) {
                Some(holds) => settle.holds = holds,
                None => return refused("neither none nor a receipt of this version of weir"),
            },
            Some(first) if first == value => {}
            Some(_) => return refused("another receipt than that of an earlier descriptor"),
        }
        if descriptor.entries.iter().any(|entry| entry.key == receipt_key) {
            return refused("another entry of the descriptor is a receipt too");
        }
        if descriptor.is_negative_hits {
            return refused("a receipt with is_negative_hits: the hits are those that were used");
        }
        first = Some(value);
        settle.descriptors |= 1 << i;
    }
    Ok(first.map(|_| Box::new(settle)))
}

fn has_receipt(request: &Request<'_>, receipt_key: &str) -> bool {
    request.descriptors.iter().flat_map(|descriptor| &descriptor.entries).any(|entry| entry.key == receipt_key)
}

/// The dynamic metadata of a response with a receipt, `{"weir.<domain>": {"receipt": ".."}}`, as an encoded field. Empty
/// without holds. After the fields of a response it adds to the response's own metadata: decoders merge both. The
/// domain in the key keeps filters of other domains on one route separate.
///
/// The generated types would take two maps and four texts, which cost more than the charge itself.
pub fn metadata_field(domain: &str, holds: &[HeldCharge]) -> Vec<u8> {
    if holds.is_empty() {
        return Vec::new();
    }
    let bytes = charge_bytes(holds);
    let text_len = text_len(&bytes);
    // Each is the length of a message, from the inside out. A field has one byte before its length.
    let field = |length: usize| 1 + encoded_len_varint(length as u64) + length;
    let value = field(text_len);
    let entry = field(FIELD.len()) + field(value);
    let ours = field(entry);
    let owner_value = field(ours);
    let owner = OWNER.len() + domain.len();
    let owner_entry = field(owner) + field(owner_value);
    let metadata = field(owner_entry);
    let mut out = Vec::with_capacity(field(metadata));
    let head = |out: &mut Vec<u8>, number: u8, length: usize| {
        const LENGTH_DELIMITED: u8 = 2;
        out.push(number << 3 | LENGTH_DELIMITED);
        put_varint(length as u64, out);
    };
    // RateLimitResponse.dynamic_metadata, Struct.fields, the key and the value of an entry.
    head(&mut out, 6, metadata);
    head(&mut out, 1, owner_entry);
    head(&mut out, 1, owner);
    out.extend_from_slice(OWNER.as_bytes());
    out.extend_from_slice(domain.as_bytes());
    head(&mut out, 2, owner_value);
    // Value.struct_value, Struct.fields, the key and the value of an entry.
    head(&mut out, 5, ours);
    head(&mut out, 1, entry);
    head(&mut out, 1, FIELD.len());
    out.extend_from_slice(FIELD.as_bytes());
    head(&mut out, 2, value);
    // Value.string_value.
    head(&mut out, 3, text_len);
    put_text(&bytes, &mut out);
    out
}

pub fn of_response<'r>(response: &'r RateLimitResponse, domain: &str) -> Option<&'r str> {
    let ours = response.dynamic_metadata.as_ref()?.fields.get(&format!("{OWNER}{domain}"))?;
    let Some(Kind::StructValue(ours)) = &ours.kind else { return None };
    match &ours.fields.get(FIELD)?.kind {
        Some(Kind::StringValue(receipt)) => Some(receipt),
        _ => None,
    }
}

/// Adds a receipt to a response in JSON, as its last field: `"receipt": ".."`.
pub fn add_to_json(body: &mut Vec<u8>, holds: &[HeldCharge]) {
    if holds.is_empty() || body.pop() != Some(b'}') {
        return;
    }
    // Every answer has a code before this field. No character of a receipt needs an escape.
    body.extend(format!(",\"receipt\":\"{}\"}}", text(holds)).into_bytes());
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use smallvec::smallvec;
    use weir_engine::{Entry, Unit};

    use super::super::convert::{Bounds, query};
    use super::super::request::Descriptor;
    use super::*;

    /// A renamed one, in place of `weir.receipt`.
    const KEY: &str = "hold";

    fn hold(key: u64, store: HeldIn, hits: Hits) -> HeldCharge {
        let receipt = Receipt { hits, at: 1_700_000_000_000_000, mark: 472_222 };
        HeldCharge { key, store, receipt, overridden: None }
    }

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let stores = [HeldIn::Shared, HeldIn::PerSecond, HeldIn::Process(u64::MAX)];
        let mut some: Vec<_> = stores.into_iter().map(|store| hold(7, store, 2_000)).collect();
        let longest = Unit::Year.window().us() + Unit::Day.window().us();
        let overridden = [(0, 1_000), (7, longest)]
            .map(|(position, us)| Some(OverriddenLimit { position, window: Window::from_micros(us).unwrap() }));
        let more =
            overridden.iter().flat_map(|&overridden| some.iter().map(move |hold| HeldCharge { overridden, ..*hold }));
        some.extend(more.collect::<Vec<_>>());
        let largest = Receipt { hits: u32::MAX, at: NUMBERS - 1, mark: NUMBERS - 1 };
        let largest =
            HeldCharge { key: u64::MAX, store: HeldIn::Process(u64::MAX), receipt: largest, overridden: overridden[1] };
        for holds in [&some[..], &[largest; HOLDS_MAX]] {
            let text = text(holds);
            assert_eq!(parse(&text).as_deref(), Some(holds), "{text}");
            assert!(text.len() <= TEXT_BYTES_MAX, "{}", text.len());
        }
        assert_eq!(text(&[largest; HOLDS_MAX]).len(), TEXT_BYTES_MAX);
        assert_eq!(text(&[hold(0x0123_4567_89ab_cdef, HeldIn::Shared, 100)]), "1.ASNFZ4mrze8AZICA-cDBxIIDnukc");
    }

    #[test]
    fn what_is_no_receipt_is_not_read() {
        let good = text(&[hold(7, HeldIn::Shared, 100)]);
        let of = |bytes: &[u8]| format!("1.{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        let key = [0; 8];
        let with = |rest: &[u8]| of(&[&key[..], rest].concat());
        assert!(parse(&with(&[0, 1, 0, 0])).is_some() && parse(&with(&[0x80, 1, 0, 0, 0xe8, 0x07])).is_some());
        for bad in [
            "",
            "none",
            "1.",
            "1",
            &good.replacen("1.", "2.", 1),
            &good[..good.len() - 1],
            &format!("{good}="),
            &format!("{good} "),
            &with(&[3, 1, 0, 0]),
            &with(&[0, 0, 0, 0]),
            // A window, none, and one of 999 us.
            &with(&[0x80, 1, 0, 0]),
            &with(&[0x80, 1, 0, 0, 0xe7, 0x07]),
            &with(&[0x83, 1, 0, 0, 0xe8, 0x07]),
            // The position of a limit that no override has.
            &with(&[0x10, 1, 0, 0]),
            &with(&[0, 1, 0]),
            &with(&[2, 1, 0, 0]),
            &with(&[0, 0xff, 0xff, 0xff, 0xff, 0x1f, 0, 0]),
            &with(&[0, 1, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]),
            &text(&[hold(7, HeldIn::Shared, 1); HOLDS_MAX + 1]),
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    fn request<'a>(values: &[&'a str]) -> Request<'a> {
        let descriptor = |value: &&'a str| Descriptor {
            entries: smallvec![Entry { key: "user", value: "ann" }, Entry { key: KEY, value }],
            ..Descriptor::default()
        };
        let mut descriptors: smallvec::SmallVec<_> = values.iter().map(descriptor).collect();
        descriptors.insert(0, Descriptor::default());
        Request { domain: "shop", descriptors, ..Request::default() }
    }

    #[test]
    fn receipts_are_taken_out_of_their_descriptors() {
        let holds = vec![hold(7, HeldIn::Shared, 100)];
        let receipt = text(&holds);
        for (values, expected) in [
            (vec![], None),
            (vec![NONE], Some(Settle { descriptors: 0b10, holds: Vec::new() })),
            (vec![&*receipt, &receipt], Some(Settle { descriptors: 0b110, holds })),
        ] {
            let mut request = request(&values);
            let sent = request.clone();
            assert_eq!(take(&mut request, KEY, |_| false), Ok(None));
            assert_eq!(take(&mut request, "weir.receipt", |_| true), Ok(None));
            assert_eq!(request, sent, "an entry like any other");
            assert_eq!(take(&mut request, KEY, |domain| domain == "shop").unwrap().map(|settle| *settle), expected);
            assert!(request.descriptors.iter().flat_map(|one| &one.entries).all(|entry| entry.key == "user"));
        }
    }

    #[test]
    fn an_error_behind_a_receipt_names_the_entry_as_it_was_sent() {
        let bounds = Bounds { descriptors: 1, entries: 2, domain_bytes: 9, key_bytes: 9, value_bytes: 3, hits: 1 };
        for (entries, place) in [
            (smallvec![Entry { key: KEY, value: NONE }, Entry { key: "user", value: "anna" }], 1),
            (smallvec![Entry { key: "user", value: "anna" }, Entry { key: KEY, value: NONE }], 0),
        ] {
            let descriptors = smallvec![Descriptor { entries, ..Descriptor::default() }];
            let mut request = Request { domain: "shop", descriptors, ..Request::default() };
            take(&mut request, KEY, |_| true).unwrap();
            let refused = query(&request, &bounds).unwrap_err();
            assert_eq!(refused.field, format!("descriptors[0].entries[{place}].value"));
        }
    }

    #[test]
    fn a_bad_receipt_is_refused_by_its_place_and_without_its_text() {
        let (one, other) = (text(&[hold(7, HeldIn::Shared, 1)]), text(&[hold(8, HeldIn::Shared, 1)]));
        let told = |request: &mut Request<'_>| take(request, KEY, |_| true).unwrap_err().to_string();
        let place = "descriptors[1].entries[1].value";
        assert_eq!(
            told(&mut request(&["secret"])),
            format!("{place}: neither none nor a receipt of this version of weir")
        );
        assert_eq!(
            told(&mut request(&[&one, &other])),
            "descriptors[2].entries[1].value: another receipt than that of an earlier descriptor"
        );
        let mut twice = request(&[&one]);
        twice.descriptors[1].entries.push(Entry { key: KEY, value: &one });
        assert_eq!(told(&mut twice), format!("{place}: another entry of the descriptor is a receipt too"));
        let mut negative = request(&[&one]);
        negative.descriptors[1].is_negative_hits = true;
        let reason = "a receipt with is_negative_hits: the hits are those that were used";
        assert_eq!(told(&mut negative), format!("{place}: {reason}"));
    }

    #[test]
    fn answers_have_the_receipt_beside_what_they_have() {
        let holds = [hold(7, HeldIn::Shared, 100)];
        assert!(metadata_field("none", &[]).is_empty());
        // Every length takes one byte, and then two.
        let long = "d".repeat(256);
        for (domain, holds) in [("shop", &holds[..]), (&long, &[hold(7, HeldIn::Shared, 100); HOLDS_MAX])] {
            // The response has metadata of its own, and more fields.
            let own = ("weir".to_owned(), Kind::NumberValue(7.0).into());
            let own = pbjson_types::Struct { fields: [own].into_iter().collect() };
            let response = RateLimitResponse { dynamic_metadata: Some(own), ..RateLimitResponse::default() };
            let field = metadata_field(domain, holds);
            assert_eq!(field.len(), field.capacity());
            let response = RateLimitResponse::decode(&*[response.encode_to_vec(), field].concat()).unwrap();
            assert_eq!(of_response(&response, domain), Some(&*text(holds)));
            assert_eq!(of_response(&response, "none"), None);
            let metadata = serde_json::to_value(response.dynamic_metadata.unwrap()).unwrap();
            let receipt = serde_json::json!({ "receipt": text(holds) });
            assert_eq!(metadata, serde_json::json!({ "weir": 7.0, format!("weir.{domain}"): receipt }));
        }
        let mut body = b"{\"overallCode\":\"OK\"}".to_vec();
        add_to_json(&mut body, &[]);
        add_to_json(&mut body, &holds);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body, serde_json::json!({ "overallCode": "OK", "receipt": text(&holds) }));
    }
}
