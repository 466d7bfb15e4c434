//! The service's request and response in proto3 JSON, for `POST /json`.
//!
//! The generated code writes responses. This file reads requests, because people type them: it reports every mistake
//! with its place. It does not check whether a well-formed request is valid (an empty domain, too many descriptors), or
//! the size of the body. The depth is bounded, because no part of a request nests freely. Errors quote a bounded part
//! of a text.

use std::marker::PhantomData;
use std::{fmt, io};

use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize as _};
use serde_json::ser::{CompactFormatter, Formatter};
use weir_engine::Entry;
use weir_engine::words::printable;

use super::bounded::{List, QUOTED_BYTES_MAX, beginning, quoted};
use super::proto::rate_limit_descriptor::RateLimitOverride;
use super::proto::{RateLimitResponse, RateLimitUnit};
use super::request::{DESCRIPTORS_KEPT_MAX, Descriptor, ENTRIES_KEPT_MAX, Request};
use super::spelling::respelt;

/// The longest text of a [`JsonError`] in bytes, without its place. A longer text loses its middle.
pub const ERROR_BYTES_MAX: usize = QUOTED_BYTES_MAX;

/// The largest whole number that JSON may write with a fraction or an exponent (`2.0`, `1e3`). Beyond 2^53 such a
/// number is not exact.
const WHOLE_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// Reads a request.
///
/// Descriptors and entries beyond the largest bounds are only counted, so a body takes at most twice its bytes and a
/// fixed part. Accepts everything that proto3 JSON allows: fields by their JSON name or their name in the proto file,
/// numbers as numbers or strings, enum values by name or number, and `null` for an unset field.
///
/// ```
/// let request = weir_rls::json::parse_request(
///     br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#,
/// )?;
/// assert_eq!(request.view().descriptors[0].entries[0].value, "ann");
///
/// let error = weir_rls::json::parse_request(br#"{"domain": "shop", "hits": 2}"#).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "unknown field `hits`, expected one of `domain`, `descriptors`, `hitsAddend`, `hits_addend` \
///      at line 1 column 25",
/// );
/// # Ok::<(), weir_rls::json::JsonError>(())
/// ```
///
/// # Errors
///
/// If the body is not JSON, has more than one value, or is not a request: an unknown field, a repeated field, or a
/// value of the wrong type or out of range.
pub fn parse_request(body: &[u8]) -> Result<JsonRequest, JsonError> {
    if body.is_empty() {
        return Err(JsonError::empty_body());
    }
    match serde_json::from_slice::<Object<RequestFields>>(body) {
        Ok(Object(fields)) => Ok(JsonRequest(fields)),
        Err(error) => Err(JsonError::new(&error)),
    }
}

/// Writes a response: JSON names, enum values by name. Omits fields with their default value.
///
/// # Errors
///
/// If JSON cannot represent the response: an enum value without a name, a number in the metadata that is not finite, a
/// duration or an instant out of range. No decision makes such a response.
pub fn render_response(response: &RateLimitResponse) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = Vec::new();
    response.serialize(&mut serde_json::Serializer::with_formatter(&mut body, WholeNumbers))?;
    Ok(body)
}

/// Writes whole numbers of dynamic metadata, which are doubles, without a point: `2`, as other writers of proto3 JSON.
struct WholeNumbers;

impl Formatter for WholeNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, number: f64) -> io::Result<()> {
        // Other writers use an exponent from here on, and so does serde_json.
        const PLAIN_MAX: f64 = 1e21;
        if number.fract() == 0.0 && number.abs() < PLAIN_MAX {
            write!(writer, "{number}")
        } else {
            CompactFormatter.write_f64(writer, number)
        }
    }
}

/// A mistake in a body, and its place.
///
/// Its text may quote the body, and is for the sender: control characters are escaped and the length is bounded by
/// [`ERROR_BYTES_MAX`]. Descriptor values may be personal data, so no log above debug may print it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} at line {line} column {column}")]
pub struct JsonError {
    message: String,
    line: usize,
    column: usize,
}

impl JsonError {
    /// The line of the body at which reading stopped, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The byte of that line at which reading stopped, from 1; 0 before the first.
    pub fn column(&self) -> usize {
        self.column
    }

    fn empty_body() -> Self {
        Self { message: "empty body, expected a JSON object".to_owned(), line: 1, column: 0 }
    }

    fn new(error: &serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let place = format!(" at line {line} column {column}");
        let text = text.strip_suffix(place.as_str()).unwrap_or(&text);
        let message = match text.strip_prefix("EOF while parsing") {
            Some(what) => format!("body ends inside{what}"),
            None => shortened(text),
        };
        Self { message, line, column }
    }
}

/// The text as [`printable`] writes it. If it is too long, its middle is removed: the beginning has what was found, the
/// end what was expected.
fn shortened(text: &str) -> String {
    const GAP: &str = " ... ";
    let escaped = printable(text);
    if escaped.len() <= ERROR_BYTES_MAX {
        return escaped;
    }
    let half = (ERROR_BYTES_MAX - GAP.len()) / 2;
    let (mut head, mut tail) = (half, escaped.len() - half);
    while !escaped.is_char_boundary(head) {
        head -= 1;
    }
    while !escaped.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}{GAP}{}", &escaped[..head], &escaped[tail..])
}

/// A message: a JSON object and nothing else. The derived code of serde would also accept a list of the fields' values.
#[derive(Debug, PartialEq)]
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(Names(map))).map(Object)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Err(E::invalid_type(quoted(text), &self))
            }
        }

        // `deserialize_map` would quote a whole text here.
        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

/// The members of an object. A name that is too long is cut.
struct Names<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Names<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(Name(seed))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}

struct Name<K>(K);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Name<K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for Name<K> {
    type Value = K::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<K::Value, E> {
        self.0.deserialize(beginning(name).into_deserializer())
    }
}

#[derive(Debug, PartialEq)]
pub struct JsonRequest(RequestFields);

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct RequestFields {
    #[serde(deserialize_with = "spelt")]
    domain: Option<String>,
    descriptors: Option<List<Object<DescriptorFields>, DESCRIPTORS_KEPT_MAX>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Whole<u32>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct DescriptorFields {
    entries: Option<List<Object<EntryFields>, ENTRIES_KEPT_MAX>>,
    limit: Option<Object<OverrideFields>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Whole<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<Flag>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EntryFields {
    #[serde(deserialize_with = "spelt")]
    key: Option<String>,
    #[serde(deserialize_with = "spelt")]
    value: Option<String>,
}

/// A caller's text, spelt like a text from gRPC. [ky-6]
fn spelt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(respelt))
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct OverrideFields {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Whole<u32>>,
    unit: Option<Unit>,
    #[serde(alias = "unit_multiplier")]
    unit_multiplier: Option<Whole<u32>>,
}

impl JsonRequest {
    pub fn view(&self) -> Request<'_> {
        let RequestFields { domain, descriptors, hits_addend } = &self.0;
        let (descriptors, descriptors_left_out) = parts(descriptors.as_ref());
        Request {
            domain: domain.as_deref().unwrap_or_default(),
            descriptors: descriptors.iter().map(|Object(descriptor)| descriptor.view()).collect(),
            descriptors_left_out,
            hits_addend: hits_addend.as_ref().map_or(0, |hits| hits.0),
            // Such a body was refused.
            unknown_limit_field: 0,
        }
    }
}

/// The kept part of a list, and the number of further elements. An unset list is empty.
fn parts<T, const KEPT_MAX: usize>(list: Option<&List<T, KEPT_MAX>>) -> (&[T], u32) {
    list.map_or((&[], 0), |list| (&list.kept, list.left_out))
}

impl DescriptorFields {
    fn view(&self) -> Descriptor<'_> {
        let (entries, entries_left_out) = parts(self.entries.as_ref());
        Descriptor {
            entries: entries.iter().map(|Object(entry)| entry.view()).collect(),
            entries_left_out,
            limit: self.limit.as_ref().map(|Object(limit)| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit.as_ref().map_or(0, |requests| requests.0),
                unit: limit.unit.as_ref().map_or(0, |unit| unit.0),
                unit_multiplier: limit.unit_multiplier.as_ref().map(|count| count.0.into()),
            }),
            hits_addend: self.hits_addend.as_ref().map(|hits| hits.0),
            is_negative_hits: self.is_negative_hits.as_ref().is_some_and(|flag| flag.0),
            receipt_at: None,
        }
    }
}

impl EntryFields {
    fn view(&self) -> Entry<'_> {
        Entry { key: self.key.as_deref().unwrap_or_default(), value: self.value.as_deref().unwrap_or_default() }
    }
}

#[derive(Debug, PartialEq)]
struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagVisitor;

        impl Visitor<'_> for FlagVisitor {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boolean")
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Self::Value, E> {
                Ok(Flag(flag))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Err(E::invalid_type(quoted(text), &self))
            }
        }

        deserializer.deserialize_any(FlagVisitor)
    }
}

/// A whole number, as a JSON number or as a string of digits.
#[derive(Debug, PartialEq)]
struct Whole<T>(T);

/// The types that [`Whole`] reads.
trait Unsigned: TryFrom<u64> {
    const EXPECTED: &str;
}

impl Unsigned for u32 {
    const EXPECTED: &str = "a whole number from 0 to 4294967295";
}

impl Unsigned for u64 {
    const EXPECTED: &str = "a whole number from 0 to 18446744073709551615";
}

impl<'de, T: Unsigned> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor<T>(PhantomData<T>);

        impl<T: Unsigned> Visitor<'_> for WholeVisitor<T> {
            type Value = Whole<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                match T::try_from(number) {
                    Ok(number) => Ok(Whole(number)),
                    Err(_) => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
                if number.fract() != 0.0 || !(0.0..=WHOLE_FLOAT_MAX).contains(&number) {
                    return Err(E::invalid_value(Unexpected::Float(number), &self));
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole, not negative and at most 2^53, as was just checked"
                )]
                self.visit_u64(number as u64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                // The standard library's parser accepts a leading plus, which JSON does not allow.
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                let number = text.parse::<u64>().ok().filter(|_| digits);
                match number.map(T::try_from) {
                    Some(Ok(number)) => Ok(Whole(number)),
                    _ => Err(E::invalid_value(quoted(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(WholeVisitor(PhantomData))
    }
}

/// The unit of a limit in a request. A number without a name is accepted: proto3 enums are open, and such a request is
/// refused at the same place as one over gRPC.
#[derive(Debug, PartialEq)]
struct Unit(i32);

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UnitVisitor;

        impl Visitor<'_> for UnitVisitor {
            type Value = Unit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("SECOND, MINUTE, HOUR, DAY, MONTH, YEAR or the number of one")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
                match RateLimitUnit::from_str_name(name) {
                    Some(unit) => Ok(Unit(unit.into())),
                    None => Err(E::invalid_value(quoted(name), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                match i32::try_from(number) {
                    Ok(number) => Ok(Unit(number)),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                match i32::try_from(number) {
                    Ok(number) => Ok(Unit(number)),
                    Err(_) => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }
        }

        deserializer.deserialize_any(UnitVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use pbjson_types::{Duration, Struct, Timestamp, Value};
    use serde_json::json;

    use super::*;
    use crate::proto::rate_limit_descriptor::Entry;
    use crate::proto::rate_limit_response::quota::ExpirationSpecifier;
    use crate::proto::rate_limit_response::rate_limit::Unit as LimitUnit;
    use crate::proto::rate_limit_response::{Code, DescriptorStatus, Quota, RateLimit};
    use crate::proto::{HeaderValue, RateLimitDescriptor, RateLimitRequest};

    #[track_caller]
    fn parsed(body: &str) -> RateLimitRequest {
        parse_request(body.as_bytes()).unwrap().view().message()
    }

    #[track_caller]
    fn refused(body: impl AsRef<[u8]>, expected: &str) {
        let error = parse_request(body.as_ref()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    /// The body of a request whose one descriptor has this field.
    fn with_descriptor_field(field: &str) -> String {
        format!(r#"{{"domain":"shop","descriptors":[{{{field}}}]}}"#)
    }

    fn full_request() -> RateLimitRequest {
        RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![
                    Entry { key: "user".to_owned(), value: "ann".to_owned() },
                    Entry { key: "path".to_owned(), value: String::new() },
                ],
                limit: Some(RateLimitOverride {
                    requests_per_unit: u32::MAX,
                    unit: RateLimitUnit::Month.into(),
                    unit_multiplier: Some(12.into()),
                }),
                hits_addend: Some(u64::MAX.into()),
                is_negative_hits: true,
            }],
            hits_addend: 3,
        }
    }

    #[test]
    fn every_field_is_read_by_either_name() {
        let json_names = r#"{"domain":"shop","descriptors":[{
            "entries":[{"key":"user","value":"ann"},{"key":"path"}],
            "limit":{"requestsPerUnit":4294967295,"unit":"MONTH","unitMultiplier":12},
            "hitsAddend":"18446744073709551615","isNegativeHits":true}],"hitsAddend":3}"#;
        let proto_names = r#"{"hits_addend":"3","descriptors":[{
            "is_negative_hits":true,"hits_addend":18446744073709551615,
            "limit":{"unit":5,"requests_per_unit":"4294967295","unit_multiplier":"12"},
            "entries":[{"value":"ann","key":"user"},{"key":"path","value":""}]}],"domain":"shop"}"#;
        assert_eq!(parsed(json_names), full_request());
        assert_eq!(parsed(proto_names), full_request());
    }

    #[test]
    fn what_is_absent_or_null_is_not_set() {
        let bare = RateLimitRequest::default();
        assert_eq!(parsed("{}"), bare);
        assert_eq!(parsed(" {} \n"), bare);
        assert_eq!(parsed(r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#), bare);

        let bare = RateLimitDescriptor::default();
        let nulls = r#""entries":null,"limit":null,"hitsAddend":null,"isNegativeHits":null"#;
        assert_eq!(parsed(&with_descriptor_field(nulls)).descriptors, [bare]);
        // An addend of 0 is a peek; an absent addend is not.
        let zero = parsed(&with_descriptor_field(r#""hitsAddend":0"#));
        assert_eq!(zero.descriptors[0].hits_addend, Some(0.into()));
        // A limit without numbers is still a limit.
        let limit = parsed(&with_descriptor_field(r#""limit":{"unit":null}"#));
        assert_eq!(limit.descriptors[0].limit, Some(RateLimitOverride::default()));
    }

    #[test]
    fn a_null_in_a_list_is_refused() {
        refused(r#"{"descriptors":[null]}"#, "invalid type: null, expected a JSON object at line 1 column 20");
    }

    #[test]
    fn numbers_may_be_written_in_all_ways_of_json() {
        for three in ["3", "3.0", "3e0", "0.3e1", r#""3""#, r#""03""#] {
            let body = format!(r#"{{"hitsAddend":{three}}}"#);
            assert_eq!(parsed(&body).hits_addend, 3, "{three}");
        }
        assert_eq!(parsed(r#"{"hitsAddend":-0}"#).hits_addend, 0);
        assert_eq!(parsed(r#"{"hitsAddend":4294967295}"#).hits_addend, u32::MAX);
        let exponent = parsed(&with_descriptor_field(r#""hitsAddend":9007199254740992.0"#));
        assert_eq!(exponent.descriptors[0].hits_addend, Some((1 << 53).into()));
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        const U32: &str = "a whole number from 0 to 4294967295 at line 1 column";
        const U64: &str = "a whole number from 0 to 18446744073709551615 at line 1 column";
        for (number, found, column) in [
            ("4294967296", "value: integer `4294967296`", 24),
            ("-1", "value: integer `-1`", 16),
            ("1.5", "value: floating point `1.5`", 17),
            ("1e10", "value: integer `10000000000`", 18),
            ("1e300", "value: floating point `1e+300`", 19),
            (r#""4294967296""#, r#"value: string "4294967296""#, 26),
            (r#""""#, r#"value: string """#, 16),
            (r#""+1""#, r#"value: string "+1""#, 18),
            (r#""-1""#, r#"value: string "-1""#, 18),
            (r#"" 1""#, r#"value: string " 1""#, 18),
            ("true", "type: boolean `true`", 18),
            ("[1]", "type: sequence", 15),
            (r#"{"value":1}"#, "type: map", 15),
        ] {
            let body = format!(r#"{{"hitsAddend":{number}}}"#);
            refused(body, &format!("invalid {found}, expected {U32} {column}"));
        }
        refused(
            with_descriptor_field(r#""hitsAddend":"18446744073709551616""#),
            &format!(r#"invalid value: string "18446744073709551616", expected {U64} 68"#),
        );
        refused(
            with_descriptor_field(r#""hitsAddend":18446744073709551616"#),
            &format!("invalid value: floating point `1.8446744073709552e+19`, expected {U64} 66"),
        );
        // Beyond 2^53 a fraction or exponent does not determine a whole number.
        let error = parse_request(with_descriptor_field(r#""hitsAddend":9007199254740994.0"#).as_bytes());
        assert!(error.is_err());
    }

    #[test]
    fn units_are_names_or_numbers() {
        for (unit, number) in [("\"UNKNOWN\"", 0), ("\"YEAR\"", 6), ("1", 1), ("7", 7), ("-1", -1)] {
            let body = with_descriptor_field(&format!(r#""limit":{{"unit":{unit}}}"#));
            assert_eq!(parsed(&body).descriptors[0].limit.unwrap().unit, number, "{unit}");
        }
        const EXPECTED: &str = "expected SECOND, MINUTE, HOUR, DAY, MONTH, YEAR or the number of one at line 1 column";
        for (unit, found, column) in [
            ("\"hour\"", "value: string \"hour\"", 55),
            ("\"WEEK\"", "value: string \"WEEK\"", 55),
            ("2147483648", "value: integer `2147483648`", 59),
            ("-2147483649", "value: integer `-2147483649`", 60),
            ("1.5", "type: floating point `1.5`", 52),
        ] {
            let body = with_descriptor_field(&format!(r#""limit":{{"unit":{unit}}}"#));
            refused(body, &format!("invalid {found}, {EXPECTED} {column}"));
        }
    }

    #[test]
    fn every_message_refuses_unknown_fields() {
        let tail = "`hitsAddend`, `hits_addend`";
        refused(
            r#"{"domain":"shop","surprise":1}"#,
            &format!(
                "unknown field `surprise`, expected one of `domain`, `descriptors`, {tail} \
                 at line 1 column 27"
            ),
        );
        refused(
            with_descriptor_field(r#""hits":1"#),
            &format!(
                "unknown field `hits`, expected one of `entries`, `limit`, {tail}, \
                 `isNegativeHits`, `is_negative_hits` at line 1 column 39"
            ),
        );
        refused(
            with_descriptor_field(r#""entries":[{"k":"user"}]"#),
            "unknown field `k`, expected `key` or `value` at line 1 column 48",
        );
        refused(
            with_descriptor_field(r#""limit":{"requests":1}"#),
            "unknown field `requests`, expected one of `requestsPerUnit`, `requests_per_unit`, `unit`, \
             `unitMultiplier`, `unit_multiplier` at line 1 column 52",
        );
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        refused(r#"{"domain":"a","domain":"b"}"#, "duplicate field `domain` at line 1 column 22");
        refused(r#"{"hitsAddend":1,"hits_addend":2}"#, "duplicate field `hitsAddend` at line 1 column 29");
    }

    #[test]
    fn a_message_is_an_object_and_not_a_list_of_its_values() {
        refused(r#"["shop"]"#, "invalid type: sequence, expected a JSON object at line 1 column 1");
        refused("null", "invalid type: null, expected a JSON object at line 1 column 4");
        refused(
            with_descriptor_field(r#""entries":[["user","ann"]]"#),
            "invalid type: sequence, expected a JSON object at line 1 column 45",
        );
        refused(r#"{"descriptors":{"entries":[]}}"#, "invalid type: map, expected a sequence at line 1 column 16");
        refused(r#"{"domain":7}"#, "invalid type: integer `7`, expected a string at line 1 column 11");
        refused(
            with_descriptor_field(r#""isNegativeHits":"true""#),
            "invalid type: string \"true\", expected a boolean at line 1 column 56",
        );
    }

    #[test]
    fn a_body_that_is_no_json_is_refused_with_the_place() {
        refused("", "empty body, expected a JSON object at line 1 column 0");
        refused(" \n ", "body ends inside a value at line 2 column 1");
        refused(r#"{"domain":"shop""#, "body ends inside an object at line 1 column 16");
        refused("{\"domain\":\n\"sh", "body ends inside a string at line 2 column 3");
        refused("{} {}", "trailing characters at line 1 column 4");
        refused("{},", "trailing characters at line 1 column 3");
        refused(r#"{"domain":"a",}"#, "trailing comma at line 1 column 15");
        refused(r#"{domain:"a"}"#, "key must be a string at line 1 column 2");
        refused("\u{feff}{}", "expected value at line 1 column 1");
        refused(b"{\"domain\":\"\xff\"}", "invalid unicode code point at line 1 column 12");
        refused(r#"{"domain":"\ud800"}"#, "unexpected end of hex escape at line 1 column 18");
        let error = parse_request(b"{\n  \"domian\": 1}").unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 10));
    }

    #[test]
    fn depth_costs_nothing() {
        let bomb = "[".repeat(200_000);
        refused(&bomb, "invalid type: sequence, expected a JSON object at line 1 column 1");
        refused(format!(r#"{{"domain":{bomb}"#), "invalid type: sequence, expected a string at line 1 column 10");
        refused(
            format!(r#"{{"descriptors":{bomb}"#),
            "invalid type: sequence, expected a JSON object at line 1 column 17",
        );
        let objects = r#"{"descriptors":[{"limit":"#.repeat(50_000);
        let error = parse_request(objects.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("unknown field `descriptors`"), "{error}");
    }

    #[test]
    fn errors_are_bounded_and_printable() {
        let name = "\\u001b[31m\\n".repeat(10_000);
        let error = parse_request(format!(r#"{{"{name}":1}}"#).as_bytes()).unwrap_err();
        assert!(error.message.len() <= ERROR_BYTES_MAX, "{}", error.message.len());
        assert!(!error.to_string().contains(char::is_control));
        assert!(error.message.starts_with(r"unknown field `\u{1b}[31m\n"), "{error}");
        assert!(error.message.ends_with("`hitsAddend`, `hits_addend`"), "{error}");

        // Cuts between characters, for any position of the halves.
        for pad in 0..4 {
            let body = format!(r#"{{"{}{}":1}}"#, "x".repeat(pad), "\u{1f980}".repeat(1_000));
            let error = parse_request(body.as_bytes()).unwrap_err();
            assert!(error.message.len() <= ERROR_BYTES_MAX, "{}", error.message.len());
        }
    }

    #[track_caller]
    fn rendered(response: &RateLimitResponse) -> serde_json::Value {
        serde_json::from_slice(&render_response(response).unwrap()).unwrap()
    }

    /// An answer of one status, with hours as the unit.
    fn answer(code: Code, remaining: u32, seconds: i64) -> RateLimitResponse {
        RateLimitResponse {
            overall_code: code.into(),
            statuses: vec![DescriptorStatus {
                code: code.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: 3,
                    unit: LimitUnit::Hour.into(),
                    ..RateLimit::default()
                }),
                limit_remaining: remaining,
                duration_until_reset: Some(Duration { seconds, nanos: 0 }),
                quota: None,
            }],
            ..RateLimitResponse::default()
        }
    }

    #[test]
    fn answers_are_written_as_envoyproxy_ratelimit_writes_them() {
        assert_eq!(
            rendered(&answer(Code::Ok, 2, 3600)),
            json!({"overallCode": "OK", "statuses": [{
                "code": "OK",
                "currentLimit": {"requestsPerUnit": 3, "unit": "HOUR"},
                "limitRemaining": 2,
                "durationUntilReset": "3600s",
            }]}),
        );
        // A remainder of 0 is omitted; a duration of 0 is a message, and is present.
        assert_eq!(
            rendered(&answer(Code::OverLimit, 0, 0)),
            json!({"overallCode": "OVER_LIMIT", "statuses": [{
                "code": "OVER_LIMIT",
                "currentLimit": {"requestsPerUnit": 3, "unit": "HOUR"},
                "durationUntilReset": "0s",
            }]}),
        );
        assert_eq!(rendered(&answer(Code::Ok, u32::MAX, 1))["statuses"][0]["limitRemaining"], u32::MAX);
        assert_eq!(render_response(&RateLimitResponse::default()).unwrap(), b"{}");
        let bare = RateLimitResponse { statuses: vec![DescriptorStatus::default()], ..RateLimitResponse::default() };
        assert_eq!(rendered(&bare), json!({"statuses": [{}]}));
    }

    #[test]
    fn whole_numbers_of_dynamic_metadata_have_no_point() {
        for (number, expected) in [
            (2.0, "2"),
            (-3.0, "-3"),
            (0.0, "0"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.5, "1.5"),
            (1e-7, "1e-7"),
        ] {
            let dynamic_metadata = Some(Struct::from(HashMap::from([("n".to_owned(), Value::from(number))])));
            let response = RateLimitResponse { dynamic_metadata, ..RateLimitResponse::default() };
            let body = render_response(&response).unwrap();
            assert_eq!(String::from_utf8(body).unwrap(), format!(r#"{{"dynamicMetadata":{{"n":{expected}}}}}"#));
        }
    }

    #[test]
    fn every_field_of_an_answer_is_written() {
        let quota = Quota {
            requests: 10,
            id: "q".to_owned(),
            expiration_specifier: Some(ExpirationSpecifier::ValidUntil(Timestamp { seconds: 2_240_611_200, nanos: 0 })),
        };
        let header = |key: &str, value: &str, raw_value: &[u8]| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: raw_value.to_vec(),
        };
        let mut full = answer(Code::Ok, 1, 1);
        full.response_headers_to_add = vec![header("x-a", "1", b"")];
        full.request_headers_to_add = vec![header("x-b", "", b"\xff\x00")];
        full.raw_body = b"slow down".to_vec();
        full.dynamic_metadata = Some(Struct::from(HashMap::from([("domain".to_owned(), Value::from("shop"))])));
        full.quota = Some(quota.clone());
        full.statuses[0].quota = Some(quota);
        full.statuses[0].current_limit = Some(RateLimit {
            requests_per_unit: 3,
            unit: LimitUnit::Week.into(),
            name: "weekly".to_owned(),
            unit_multiplier: Some(2.into()),
        });

        let quota = json!({"requests": 10, "validUntil": "2041-01-01T00:00:00+00:00", "id": "q"});
        assert_eq!(
            rendered(&full),
            json!({
                "overallCode": "OK",
                "statuses": [{
                    "code": "OK",
                    "currentLimit": {"requestsPerUnit": 3, "unit": "WEEK", "name": "weekly", "unitMultiplier": 2},
                    "limitRemaining": 1,
                    "durationUntilReset": "1s",
                    "quota": quota,
                }],
                "responseHeadersToAdd": [{"key": "x-a", "value": "1"}],
                "requestHeadersToAdd": [{"key": "x-b", "rawValue": "/wA="}],
                "rawBody": "c2xvdyBkb3du",
                "dynamicMetadata": {"domain": "shop"},
                "quota": quota,
            }),
        );
        // Written responses can be read again with the same rules, without loss.
        let read: RateLimitResponse = serde_json::from_slice(&render_response(&full).unwrap()).unwrap();
        assert_eq!(read, full);
    }

    #[test]
    fn what_json_cannot_say_is_an_error_and_no_panic() {
        let unnamed = RateLimitResponse { overall_code: 99, ..RateLimitResponse::default() };
        assert!(render_response(&unnamed).is_err());
        let metadata = HashMap::from([("nan".to_owned(), Value::from(f64::NAN))]);
        let not_finite =
            RateLimitResponse { dynamic_metadata: Some(Struct::from(metadata)), ..RateLimitResponse::default() };
        assert!(render_response(&not_finite).is_err());
    }
}
