//! Bytes as text: hexadecimal digits, and percent encoding.

use std::fmt::Write as _;

/// Bytes as lower-case hexadecimal digits, two for each.
///
/// ```
/// assert_eq!(weir_text::hex(&[0, 0xff]), "00ff");
/// ```
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Percent-encodes every byte except letters, digits, `-`, `.`, `_`, `~` and those that `plain` accepts.
///
/// ```
/// use weir_text::percent_encoded;
///
/// assert_eq!(percent_encoded("a/b c", |byte| byte == b'/'), "a/b%20c");
/// ```
pub fn percent_encoded(text: &str, plain: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::new();
    for &byte in text.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain(byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Decodes percent-encoded bytes. An invalid code is kept as it is. Bytes that are not UTF-8 become replacement characters.
///
/// ```
/// assert_eq!(weir_text::percent_decoded("a%20b%zz"), "a b%zz");
/// ```
pub fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |at: usize| tail.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (first, hex(0).zip(hex(1))) {
            (b'%', Some((high, low))) => {
                bytes.push(u8::try_from(high << 4 | low).unwrap_or_default());
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
