//! Values of requests that are in a network: an address beside inner networks, and the texts of an address or a network.

use std::net::IpAddr;

use weir_engine::network::Network;

/// An address in this network and in none of the others. None if the others cover all of it.
pub(super) fn address_beside(network: &Network, others: &[Network]) -> Option<Network> {
    let inside: Vec<Network> = others.iter().filter(|other| network.covers(other)).copied().collect();
    if inside.contains(network) {
        return None;
    }
    if inside.is_empty() {
        let mut address = *network;
        while let Some([first, second]) = address.halves() {
            // The second address of a network is more often a host than the first.
            address = if first.halves().is_none() { second } else { first };
        }
        return Some(address);
    }
    network.halves()?.iter().find_map(|half| address_beside(half, &inside))
}

/// Texts of an address or a network, the usual text first. All of them parse to the same network.
pub(super) fn spellings(network: &Network) -> Vec<String> {
    let length = network.length();
    let mut texts = Vec::new();
    match network.first() {
        IpAddr::V4(address) => {
            if length == 32 {
                texts.extend([address.to_string(), format!("::ffff:{address}")]);
            }
            texts.extend([format!("{address}/{length}"), format!("::ffff:{address}/{}", length + 96)]);
            let bits = address.to_bits();
            texts.push(format!("::ffff:{:x}:{:x}/{}", bits >> 16, bits & 0xffff, length + 96));
        }
        IpAddr::V6(address) => {
            let words: Vec<String> = address.segments().iter().map(|word| format!("{word:04x}")).collect();
            let whole = words.join(":");
            if length == 128 {
                texts.extend([address.to_string(), whole.clone(), whole.to_uppercase()]);
            }
            texts.extend([format!("{address}/{length}"), format!("{whole}/{length}")]);
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_an_address_beside_those_within_it() {
        let network = |text: &str| Network::parse(text).expect(text);
        let beside = |text: &str, others: &[&str]| {
            let others: Vec<Network> = others.iter().map(|text| network(text)).collect();
            address_beside(&network(text), &others).map(|address| address.to_string())
        };
        assert_eq!(beside("10.0.0.0/8", &[]).as_deref(), Some("10.0.0.1/32"));
        assert_eq!(beside("10.0.0.0/8", &["10.0.0.0/9"]).as_deref(), Some("10.128.0.1/32"));
        assert_eq!(beside("10.0.0.0/8", &["10.0.0.0/9", "10.128.0.0/9"]), None);
        assert_eq!(beside("10.0.0.1/32", &["11.0.0.0/8"]).as_deref(), Some("10.0.0.1/32"));
        assert_eq!(beside("2001:db8::/32", &["2001:db8::/64"]).as_deref(), Some("2001:db8:0:1::1/128"));
        for text in ["10.1.0.0/16", "10.0.0.1/32", "0.0.0.0/0", "2001:db8::/32", "::1/128"] {
            for spelling in spellings(&network(text)) {
                assert_eq!(Network::parse(&spelling), Ok(network(text)), "{spelling}");
            }
        }
    }
}
