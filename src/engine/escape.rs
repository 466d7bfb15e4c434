//! How text from callers and policies is written in keys. [ky-2]

use std::fmt::Write as _;

/// Whether a key contains this byte unescaped. Bytes above ASCII are unescaped: keys are UTF-8.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut byte = 0;
    while byte <= b' ' as usize {
        plain[byte] = false;
        byte += 1;
    }
    plain[0x7f] = false;
    let special = b"%{}|=*~";
    let mut i = 0;
    while i < special.len() {
        plain[special[i] as usize] = false;
        i += 1;
    }
    plain
};

/// Appends `text`, with `%XX` for every byte that has a meaning in keys. [ky-2]
pub(super) fn escape(out: &mut String, text: &str) {
    // Usually no byte needs an escape. This check of all bytes is faster than a search for the first such byte.
    if text.bytes().fold(true, |is_plain, byte| is_plain & PLAIN[usize::from(byte)]) {
        out.push_str(text);
    } else {
        escape_each(out, text);
    }
}

#[cold]
fn escape_each(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| !PLAIN[usize::from(byte)]) {
        out.push_str(&rest[..at]);
        let _ = write!(out, "%{:02X}", rest.as_bytes()[at]);
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}
