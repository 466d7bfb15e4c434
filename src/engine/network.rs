//! Networks of IP addresses: their texts, and the longest network that contains an address. [mt-8]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hashbrown::{HashMap, HashSet};

/// The most lookups in a hash map for one address, with any number of networks: the depth of a binary search over the
/// 129 lengths of an IPv6 network.
pub const LOOKUPS_MAX: u32 = 8;

/// A range of addresses that begin with the same bits. IPv4 within IPv6 (`::ffff:10.0.0.0/104`) is IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    is_v6: bool,
    /// The first address as a number; the bits after the first `length` are 0.
    bits: u128,
    length: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    #[error("an address and a length are needed, such as 10.0.0.0/8 or 2001:db8::/32")]
    NoAddress,
    #[error("write the length of the network in bits after the slash, such as 10.0.0.0/8")]
    NoLength,
    /// The length is larger than the number of bits of an address.
    #[error("the length must be at most {bits}")]
    TooLong { bits: u8 },
    /// It has a netmask in place of the length. `meant` has the length.
    #[error("a length is needed in place of the netmask: write {meant}")]
    Netmask { meant: Network },
    /// `meant` is the network of that length that contains the address, and `host` the single address.
    #[error("the address has bits beyond the first {}: write {meant}, or {host} for this address", meant.length)]
    HostBits { meant: Network, host: Network },
}

impl Network {
    /// Reads a network of a policy. A single address is a network of one address.
    ///
    /// # Errors
    /// When the text is not a network; the error suggests a correction.
    pub fn parse(text: &str) -> Result<Self, NetworkError> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| NetworkError::NoAddress)?;
        let host = Self::of_address(address);
        let Some(length) = length else { return Ok(host) };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if let (IpAddr::V4(_), Ok(mask)) = (address, length.parse::<Ipv4Addr>()) {
            let mask = mask.to_bits();
            // A netmask has no 1 after a 0.
            let is_mask = mask.leading_ones() + mask.trailing_zeros() >= 32;
            #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
            let meant = host.cut(mask.leading_ones() as u8);
            return Err(if is_mask { NetworkError::Netmask { meant } } else { NetworkError::NoLength });
        }
        let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let length = if is_number { length.parse().unwrap_or(u8::MAX) } else { return Err(NetworkError::NoLength) };
        if length > bits {
            return Err(NetworkError::TooLong { bits });
        }
        let whole = Self { is_v6: address.is_ipv6(), bits: left(address), length: bits };
        let network = whole.cut(length);
        if network.bits != whole.bits {
            return Err(NetworkError::HostBits { meant: network.unmapped(), host });
        }
        Ok(network.unmapped())
    }

    /// Reads a value of a request: an address, or a network, as Envoy's `masked_remote_address` sends it.
    fn of_value(value: &str) -> Option<Self> {
        if let Ok(address) = value.parse::<IpAddr>() {
            return Some(Self::of_address(address));
        }
        // Prevents a parse as two kinds for a text that only has a slash, such as a path.
        let starts_so = value.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':');
        if starts_so && value.contains('/') { Self::parse(value).ok() } else { None }
    }

    fn of_address(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { is_v6: address.is_ipv6(), bits: left(address), length }.unmapped()
    }

    /// The same network as IPv4, if it is in the IPv4 range of IPv6.
    fn unmapped(self) -> Self {
        let is_mapped = self.is_v6 && self.length >= 96 && self.bits >> 32 == 0xffff;
        if is_mapped { Self { is_v6: false, bits: self.bits << 96, length: self.length - 96 } } else { self }
    }

    /// The network of `length` that contains this network. `length` is not larger than this network's.
    fn cut(self, length: u8) -> Self {
        Self { bits: cut(self.bits, length), length, ..self }
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        if self.is_v6 {
            Ipv6Addr::from_bits(self.bits).into()
        } else {
            Ipv4Addr::from_bits((self.bits >> 96) as u32).into()
        }
    }

    /// The number of bits that all addresses share.
    pub const fn length(&self) -> u8 {
        self.length
    }

    /// The two halves of the network. None for a single address.
    pub fn halves(&self) -> Option<[Self; 2]> {
        let bits = if self.is_v6 { 128 } else { 32 };
        let length = if self.length < bits { self.length + 1 } else { return None };
        let upper = self.bits | 1 << (128 - length);
        Some([Self { length, ..*self }, Self { bits: upper, length, ..*self }])
    }

    /// Whether a value of a request is in this network.
    pub fn has(&self, value: &str) -> bool {
        Self::of_value(value).is_some_and(|value| self.covers(&value))
    }

    pub fn covers(&self, other: &Self) -> bool {
        other.is_v6 == self.is_v6 && other.length >= self.length && other.cut(self.length) == *self
    }
}

/// The bits of an address, from the left.
fn left(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The first bits, with zeros in place of the rest.
fn cut(bits: u128, length: u8) -> u128 {
    // A shift by all 128 bits overflows; then the result has no bits of the address.
    bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.length)
    }
}

/// Networks, each with a number that the caller gives.
#[derive(Debug, Default)]
pub(super) struct Networks {
    all: Vec<(Network, u32)>,
    known: HashSet<Network>,
    v4: Family,
    v6: Family,
}

/// The networks of one address family: a binary search over the existing lengths, with a hash map lookup in each step.
/// The search needs to know whether longer networks can follow. So the map also has shorter beginnings of each network,
/// for the lengths that the search visits.
#[derive(Debug, Default)]
struct Family {
    /// In ascending order.
    lengths: Box<[u8]>,
    /// For a length and bits, the longest network that contains them.
    longest: HashMap<(u8, u128), Option<u32>>,
}

impl Networks {
    /// Adds a network. Returns false if it was added before.
    pub(super) fn push(&mut self, network: Network, number: u32) -> bool {
        self.all.push((network, number));
        self.known.insert(network)
    }

    /// Prepares the networks for [`Networks::find`].
    pub(super) fn seal(&mut self) {
        self.known = HashSet::new();
        for (family, is_v6) in [(&mut self.v4, false), (&mut self.v6, true)] {
            *family = Family::of(&self.all, is_v6);
        }
    }

    /// All networks with their numbers, the longest first.
    pub(super) fn longest_first(&self) -> Vec<(&Network, u32)> {
        let mut all: Vec<(&Network, u32)> = self.all.iter().map(|(network, number)| (network, *number)).collect();
        all.sort_by_key(|(network, _)| std::cmp::Reverse(network.length));
        all
    }

    /// The longest network that contains the value, and its number.
    pub(super) fn find(&self, value: &str) -> Option<(&Network, u32)> {
        let value = Network::of_value(value)?;
        let family = if value.is_v6 { &self.v6 } else { &self.v4 };
        let index = family.find(value.bits, value.length)?;
        let (network, number) = &self.all[index as usize];
        Some((network, *number))
    }
}

impl Family {
    fn of(all: &[(Network, u32)], is_v6: bool) -> Self {
        // From short to long, so the longest network around each is known before it is needed.
        let mut sorted: Vec<(Network, u32)> = Vec::new();
        for (index, (network, _)) in (0u32..).zip(all) {
            if network.is_v6 == is_v6 {
                sorted.push((*network, index));
            }
        }
        sorted.sort_unstable_by_key(|(network, _)| network.length);
        let mut lengths: Vec<u8> = sorted.iter().map(|(network, _)| network.length).collect();
        lengths.dedup();
        let mut exact: HashMap<(u8, u128), u32> = HashMap::with_capacity(sorted.len());
        for (network, index) in &sorted {
            exact.insert((network.length, network.bits), *index);
        }
        let around = |bits: u128, length: u8| {
            let shorter = lengths.iter().rev().filter(|shorter| **shorter <= length);
            shorter.filter_map(|&shorter| exact.get(&(shorter, cut(bits, shorter)))).next().copied()
        };
        let mut longest = HashMap::with_capacity(sorted.len());
        for (network, _) in &sorted {
            let (mut low, mut high) = (0, lengths.len());
            while low < high {
                let middle = usize::midpoint(low, high);
                let length = lengths[middle];
                if length > network.length {
                    high = middle;
                    continue;
                }
                let bits = cut(network.bits, length);
                longest.entry((length, bits)).or_insert_with(|| around(bits, length));
                low = middle + 1;
            }
        }
        Self { lengths: lengths.into(), longest }
    }

    /// Finds among networks that are not longer than `length`.
    fn find(&self, bits: u128, length: u8) -> Option<u32> {
        let (mut low, mut high) = (0, self.lengths.len());
        let mut found = None;
        while low < high {
            let middle = usize::midpoint(low, high);
            let here = self.lengths[middle];
            let known = if here > length { None } else { self.longest.get(&(here, cut(bits, here))) };
            match known {
                Some(longest) => {
                    found = longest.or(found);
                    low = middle + 1;
                }
                None => high = middle,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn networks_are_read_and_written() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("2001:DB8:0::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::1", "::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::fffe:0:0/95", "::fffe:0:0/95"),
        ] {
            assert_eq!(network(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_network_is_told_with_what_was_meant() {
        for (text, expected) in [
            (
                "10.0.0.1/8",
                "the address has bits beyond the first 8: write 10.0.0.0/8, or 10.0.0.1/32 for this address",
            ),
            ("2001:db8::1/32", "the address has bits beyond the first 32: write 2001:db8::/32, or 2001:db8::1/128"),
            ("::ffff:10.1.0.0/104", "write 10.0.0.0/8, or 10.1.0.0/32 for this address"),
            ("10.0.0.0/33", "the length must be at most 32"),
            ("::/129", "the length must be at most 128"),
            ("10.0.0.0/999999", "the length must be at most 32"),
            ("10.0.0.0/255.0.0.0", "in place of the netmask: write 10.0.0.0/8"),
            ("10.0.0.0/255.0.255.0", "after the slash"),
            ("10.0.0.0/", "after the slash"),
            ("10.0.0.0/+8", "after the slash"),
            ("10.0.0/8", "an address and a length"),
            ("10.*", "an address and a length"),
            ("", "an address and a length"),
        ] {
            let told = Network::parse(text).map(|network| network.to_string());
            let told = told.map_err(|error| error.to_string()).expect_err(text);
            assert!(told.contains(expected), "{text}: {told}");
        }
    }

    #[test]
    fn the_longest_network_is_found() {
        let texts = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "0.0.0.0/0", "2001:db8::/32", "::/0", "10.1.2.3/32"];
        let mut networks = Networks::default();
        for (number, text) in (0..).zip(texts) {
            networks.push(network(text), number);
        }
        networks.seal();
        for (value, expected) in [
            ("10.1.2.3", Some("10.1.2.3/32")),
            ("::ffff:10.1.2.3", Some("10.1.2.3/32")),
            ("10.1.2.4", Some("10.1.2.0/24")),
            ("10.1.2.0/24", Some("10.1.2.0/24")),
            ("10.1.2.0/23", Some("10.1.0.0/16")),
            ("10.1.0.0/23", Some("10.1.0.0/16")),
            ("10.1.0.0/16", Some("10.1.0.0/16")),
            ("10.0.0.0/7", Some("0.0.0.0/0")),
            ("10.0.0.0/9", Some("10.0.0.0/8")),
            ("8.0.0.0/7", Some("0.0.0.0/0")),
            ("8.8.8.8", Some("0.0.0.0/0")),
            ("2001:db8::1", Some("2001:db8::/32")),
            ("2001:DB8::1", Some("2001:db8::/32")),
            ("2001:db9::1", Some("::/0")),
            ("010.1.2.3", None),
            ("10.1.2.3:80", None),
            ("[::1]", None),
            ("/pay/card", None),
            ("", None),
        ] {
            let found = networks.find(value);
            assert_eq!(found.map(|(network, _)| network.to_string()).as_deref(), expected, "{value}");
            if let Some((network, number)) = found {
                assert_eq!(network.to_string(), self::network(texts[number as usize]).to_string());
                assert!(network.has(value));
            }
        }
    }

    #[test]
    fn an_address_costs_few_lookups_with_networks_of_all_lengths() {
        let mut networks = Networks::default();
        for length in 0..=128 {
            networks.push(Network { is_v6: true, bits: u128::MAX, length: 128 }.cut(length), u32::from(length));
        }
        networks.seal();
        let mut steps = networks.v6.lengths.len();
        let mut deepest = 0;
        while steps > 0 {
            steps /= 2;
            deepest += 1;
        }
        assert_eq!(deepest, LOOKUPS_MAX);
        // The steps also bound the map entries that are not networks themselves.
        assert!(networks.v6.longest.len() <= networks.all.len() * LOOKUPS_MAX as usize);
        assert_eq!(networks.find("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe").map(|(_, number)| number), Some(127));
        assert_eq!(networks.find("7fff::").map(|(_, number)| number), Some(0));
    }
}
