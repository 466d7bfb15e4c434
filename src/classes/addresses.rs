//! Texts that can be an address or a network. The bytes of an IPv4 address show, one after the other, which of some
//! networks contains the address.
//!
//! An IPv6 address and a network can each be written as several texts, so this file does not search a network for such
//! a text.

use std::net::IpAddr;

use hashbrown::HashMap;
use weir_engine::network::Network;

/// Networks, each with the smallest network that contains it.
#[derive(Debug, Default)]
pub(super) struct Lattice {
    /// In order: a network comes before its inner networks.
    networks: Vec<Network>,
    around: Vec<Option<u32>>,
    v4: HashMap<(u32, u8), u32>,
}

/// The meaning of a whole text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Spelled {
    /// Neither an address nor a network.
    Neither,
    /// An IPv4 address in this network and in none of its inner networks, or in no network.
    Address(Option<u32>),
    /// Perhaps a network that begins with such an address. It is in the same network, in a larger network, or in no
    /// network.
    Cut(Option<u32>),
    /// Perhaps an IPv6 address or network, or IPv4 within IPv6.
    V6,
}

/// The state after the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spelling {
    v4: V4,
    v6: V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum V4 {
    /// Not an IPv4 address.
    Not,
    /// After this many complete numbers.
    In { numbers: u8, at: At, number: Option<u8> },
    /// After an address in this network and a slash: the length so far.
    Slash { within: Option<u32>, length: Option<u8> },
}

/// Where the complete numbers of an address lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Into this network and none of its inner networks, or into no network.
    Settled(Option<u32>),
    /// To these first bits, which networks share.
    Open(u32),
}

/// The form of an IPv6 address so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum V6 {
    Not,
    /// The number of colons, and of digits after the last colon.
    In {
        colons: u8,
        digits: u8,
    },
    /// After a dot or a slash.
    Tail,
}

impl Lattice {
    pub(super) fn new(networks: impl IntoIterator<Item = Network>) -> Self {
        let mut networks: Vec<Network> = networks.into_iter().collect();
        networks.sort_unstable();
        networks.dedup();
        let mut around: Vec<Option<u32>> = Vec::with_capacity(networks.len());
        let mut open: Vec<u32> = Vec::new();
        let mut v4 = HashMap::new();
        for (number, network) in (0u32..).zip(&networks) {
            while open.last().is_some_and(|last| !networks[*last as usize].covers(network)) {
                open.pop();
            }
            around.push(open.last().copied());
            open.push(number);
            v4.extend(bits_of_v4(network).map(|bits| (bits, number)));
        }
        Self { networks, around, v4 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// The networks in which a text may be; none stands for no network.
    pub(super) fn possible(&self, spelled: Spelled) -> Vec<Option<&Network>> {
        let mut at = match spelled {
            Spelled::Neither => return vec![None],
            Spelled::Address(network) => return vec![network.map(|network| &self.networks[network as usize])],
            Spelled::V6 => return self.networks.iter().map(Some).chain([None]).collect(),
            Spelled::Cut(network) => network,
        };
        let mut possible = vec![None];
        while let Some(network) = at {
            possible.push(Some(&self.networks[network as usize]));
            at = self.around[network as usize];
        }
        possible
    }

    /// The networks, each with its direct inner networks.
    pub(super) fn with_inner(&self) -> Vec<(&Network, Vec<Network>)> {
        let mut inner: Vec<Vec<Network>> = vec![Vec::new(); self.networks.len()];
        for (network, around) in self.networks.iter().zip(&self.around) {
            if let Some(around) = around {
                inner[*around as usize].push(*network);
            }
        }
        self.networks.iter().zip(inner).collect()
    }

    pub(super) fn begin(&self) -> Spelling {
        Spelling { v4: V4::In { numbers: 0, at: self.at(0, 0), number: None }, v6: V6::In { colons: 0, digits: 0 } }
    }

    pub(super) fn read(&self, spelling: Spelling, byte: u8) -> Spelling {
        Spelling { v4: self.read_v4(spelling.v4, byte), v6: read_v6(spelling.v6, byte) }
    }

    pub(super) fn end(&self, spelling: Spelling) -> Spelled {
        match spelling {
            Spelling { v4: V4::In { numbers: 3, at, number: Some(number) }, .. } => {
                Spelled::Address(self.whole(at, number))
            }
            Spelling { v4: V4::Slash { within, length: Some(_) }, .. } => Spelled::Cut(within),
            Spelling { v6: V6::Tail | V6::In { colons: 2.., .. }, .. } => Spelled::V6,
            _ => Spelled::Neither,
        }
    }

    /// The class of a byte. Bytes of one class have the same effect.
    pub(super) fn byte_class(byte: u8) -> u8 {
        match byte {
            b'0'..=b'9' | b':' | b'.' | b'/' => byte,
            b'a'..=b'f' | b'A'..=b'F' => b'a',
            _ => 0,
        }
    }

    fn read_v4(&self, v4: V4, byte: u8) -> V4 {
        let digit = byte.is_ascii_digit().then(|| byte - b'0');
        match (v4, digit, byte) {
            (V4::In { numbers, at, number }, Some(digit), _) => {
                let longer = match number {
                    None => Some(digit),
                    Some(0) => None,
                    Some(number) => number.checked_mul(10).and_then(|number| number.checked_add(digit)),
                };
                longer.map_or(V4::Not, |number| V4::In { numbers, at, number: Some(told(at, number)) })
            }
            (V4::In { numbers, at, number: Some(number) }, _, b'.') if numbers < 3 => {
                V4::In { numbers: numbers + 1, at: self.further(at, numbers, number), number: None }
            }
            (V4::In { numbers: 3, at, number: Some(number) }, _, b'/') => {
                V4::Slash { within: self.whole(at, number), length: None }
            }
            (V4::Slash { within, length }, Some(digit), _) => {
                let length = length.unwrap_or(0).saturating_mul(10).saturating_add(digit);
                if length <= 32 { V4::Slash { within, length: Some(length) } } else { V4::Not }
            }
            _ => V4::Not,
        }
    }

    /// The smallest network that contains a complete address; `number` is its last number.
    fn whole(&self, at: At, number: u8) -> Option<u32> {
        match self.further(at, 3, number) {
            At::Settled(network) => network,
            At::Open(_) => unreachable!("no network is within an address"),
        }
    }

    /// Where the next number leads.
    fn further(&self, at: At, numbers: u8, number: u8) -> At {
        match at {
            At::Settled(_) => at,
            At::Open(bits) => self.at(bits | u32::from(number) << (24 - 8 * u32::from(numbers)), 8 * (numbers + 1)),
        }
    }

    /// Where the first `length` bits lead.
    fn at(&self, bits: u32, length: u8) -> At {
        let last = bits | u32::MAX.checked_shr(length.into()).unwrap_or(0);
        let before = |bits: u32, length: u8| {
            self.networks.partition_point(|network| bits_of_v4(network).is_some_and(|own| own < (bits, length)))
        };
        // The order of networks is that of their first bits, IPv4 before IPv6.
        let inner = &self.networks[before(bits, 0)..before(last, u8::MAX)];
        if inner.iter().any(|network| bits_of_v4(network).is_some_and(|(_, own)| own > length)) {
            return At::Open(bits);
        }
        let around = |own: u8| (bits & u32::MAX.checked_shl(32 - u32::from(own)).unwrap_or(0), own);
        At::Settled((0..=length).rev().find_map(|own| self.v4.get(&around(own)).copied()))
    }
}

/// The first address of a network as IPv4, and the number of bits that all addresses share. None for IPv6.
fn bits_of_v4(network: &Network) -> Option<(u32, u8)> {
    match network.first() {
        IpAddr::V4(address) => Some((address.to_bits(), network.length())),
        IpAddr::V6(_) => None,
    }
}

/// The part of a number that matters: where it leads, or which digits can follow it.
fn told(at: At, number: u8) -> u8 {
    match (at, number) {
        (At::Open(_), _) | (_, 0..=2 | 25) => number,
        (_, 3..=9) => 3,
        (_, 10..=24) => 10,
        (_, 26..) => 26,
    }
}

fn read_v6(v6: V6, byte: u8) -> V6 {
    match (v6, byte) {
        (V6::In { colons, digits }, _) if byte.is_ascii_hexdigit() && digits < 4 => {
            V6::In { colons, digits: digits + 1 }
        }
        (V6::In { colons, .. }, b':') if colons < 8 => V6::In { colons: colons + 1, digits: 0 },
        (V6::In { colons: 2.., .. }, b'.' | b'/') | (V6::Tail, b'0'..=b'9' | b'.' | b'/') => V6::Tail,
        _ => V6::Not,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_network_that_the_engine_finds() {
        let texts =
            ["0.0.0.0/1", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/25", "10.1.2.7/32", "172.16.0.0/12", "2001:db8::/32"];
        let networks = texts.map(|text| Network::parse(text).expect(text));
        let lattice = Lattice::new(networks);
        let spelled =
            |text: &str| lattice.end(text.bytes().fold(lattice.begin(), |spelling, byte| lattice.read(spelling, byte)));
        let mut seed = 7_u32;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let mut bytes = (seed >> 3).to_be_bytes();
            let [a, b, c, d] = bytes;
            let firsts = [[10, 1, 2], [10, 1, c], [172, b, 1], [a, 1, 2]];
            let [a, b, c] = firsts[usize::from(d & 3)];
            bytes = [a, b, c, d >> 2 & 15];
            let address = bytes.map(|byte| byte.to_string()).join(".");
            let within = networks.iter().filter(|network| network.has(&address)).max_by_key(|network| network.length());
            let Spelled::Address(found) = spelled(&address) else { panic!("{address} is an address") };
            assert_eq!(found.map(|found| lattice.networks[found as usize]), within.copied(), "{address}");
        }
        for text in
            ["10.1.2", "10.1.2.256", "10.01.2.3", "1.2.3.4.5", "10.1.2.x", "", "abcd", "/v1", "12345::", "10.0.0.0/33"]
        {
            assert_eq!(spelled(text), Spelled::Neither, "{text}");
        }
        for text in ["::1", "2001:db8::1", "::ffff:10.0.0.1", "1:2:3:4:5:6:7:8", "2001:db8::/32"] {
            assert_eq!(spelled(text), Spelled::V6, "{text}");
        }
        let possible = |text: &str| -> Vec<String> {
            lattice.possible(spelled(text)).into_iter().flatten().map(ToString::to_string).collect()
        };
        assert_eq!(possible("10.1.0.0/016"), ["10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/1"]);
        assert_eq!(possible("200.0.0.0/8"), [""; 0]);
    }
}
