//! The cluster slot of a key, by Redis' rule: the CRC16 of the key, or of its hash tag.
//!
//! Not here: which node has a slot (map.rs).

/// The number of slots of every cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key whose Redis key is `prefix` followed by `key`.
pub(crate) fn of(prefix: &str, key: &str) -> u16 {
    // Most prefixes have no brace, so they are not part of a tag: only the key matters.
    if !prefix.contains('{') {
        if let Some(tag) = tag(key) {
            return slot(crc16(0, tag));
        }
        return slot(crc16(crc16(0, prefix.as_bytes()), key.as_bytes()));
    }
    let whole = [prefix, key].concat();
    slot(crc16(0, tag(&whole).unwrap_or(whole.as_bytes())))
}

/// The text between the first `{` and the next `}`. None if it is empty: then the whole key counts.
fn tag(key: &str) -> Option<&[u8]> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag.as_bytes())
}

const fn slot(crc: u16) -> u16 {
    crc % SLOTS
}

/// CRC-16/XMODEM: polynomial 0x1021, no reflection. `crc` is the start value (0 for a whole text).
fn crc16(mut crc: u16, bytes: &[u8]) -> u16 {
    for &byte in bytes {
        let index = (crc >> 8) ^ u16::from(byte);
        crc = (crc << 8) ^ TABLE[usize::from(index)];
    }
    crc
}

/// The effect of each first byte on the rest.
const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    const POLYNOMIAL: u16 = 0x1021;
    let mut table = [0_u16; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_the_one_that_redis_computes() {
        // The check value of CRC-16/XMODEM, as Redis' cluster specification gives it.
        assert_eq!(crc16(0, b"123456789"), 0x31c3);
        // CLUSTER KEYSLOT returns the other values. tests/redis/cluster.rs compares thousands more.
        assert_eq!(of("", "foo"), 12_182);
        assert_eq!(of("", "somekey"), 11_058);
        assert_eq!(of("", "foo{hash_tag}"), 2_515);
        assert_eq!(of("", ""), 0);
    }

    #[test]
    fn a_prefix_counts_like_the_rest_of_the_key() {
        let check = |prefix: &str, key: &str| {
            let whole = [prefix, key].concat();
            assert_eq!(of(prefix, key), of("", &whole), "{prefix:?} {key:?}");
        };
        check("weir:", "w1:{shop|user=4}f60");
        check("weir:", "no tag");
        check("{weir}", "w1:{shop|user=4}f60");
        check("{", "w1:{shop|user=4}f60");
        check("a{}", "w1:{shop}f60");
        check("a}", "w1:{shop}f60");
        assert_eq!(of("weir:", "w1:{shop}f60"), of("", "{shop}"));
        assert_eq!(of("weir:", "w1:{shop}f60"), of("", "{shop}f3600{other}"));
        assert_ne!(of("", "{}shop"), of("", "{}other"), "an empty tag is none");
    }
}
