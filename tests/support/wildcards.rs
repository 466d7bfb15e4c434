//! What wildcards and networks meet, worked out the slow way.

use std::net::IpAddr;

/// Whether a wildcard matches, by trying every length for each star.
pub fn stars(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|taken| stars(rest, &value[taken..])),
        Some((first, rest)) => value.split_first().is_some_and(|(byte, value)| byte == first && stars(rest, value)),
    }
}

/// A letter for the kind of address, and the bits that an address or a network fixes.
pub fn bits(text: &str) -> Option<String> {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().ok()?;
    let (kind, bits) = match address {
        IpAddr::V4(address) => ('4', format!("{:032b}", address.to_bits())),
        IpAddr::V6(address) => ('6', format!("{:0128b}", address.to_bits())),
    };
    let length = length.map_or(Some(bits.len()), |length| length.parse().ok())?;
    let fixed = &bits[..length];
    let of_v4 = format!("{}{}", "0".repeat(80), "1".repeat(16));
    match fixed.strip_prefix(&of_v4) {
        Some(v4) if kind == '6' => Some(format!("4{v4}")),
        _ => Some(format!("{kind}{fixed}")),
    }
}
