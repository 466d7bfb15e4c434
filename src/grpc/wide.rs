//! Which requests are wide: those that wait for a turn, because deciding one takes long.

use weir_protobuf::field;

/// A request with more descriptors is wide.
const DESCRIPTORS_MAX: usize = 8;
/// A request with a longer message is wide.
const MESSAGE_BYTES_MAX: usize = 8 * 1_024;
/// No shorter message has more than [`DESCRIPTORS_MAX`] descriptors of at least one entry with a key.
const MESSAGE_BYTES_MIN: usize = (DESCRIPTORS_MAX + 1) * 7;
/// Whether a `RateLimitRequest` is wide. Reads only the heads of its fields.
pub(super) fn is_wide(message: &[u8]) -> bool {
    match message.len() {
        ..MESSAGE_BYTES_MIN => false,
        MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX => has_many_fields(message),
        _ => true,
    }
}

/// Whether there are more fields than in a narrow request: the domain, the hits, and the descriptors. An unreadable
/// field ends the count, and decoding refuses the request.
fn has_many_fields(mut message: &[u8]) -> bool {
    (0..DESCRIPTORS_MAX + 2).all(|_| !message.is_empty() && field(&mut message).is_some()) && !message.is_empty()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use weir_rls::proto::rate_limit_descriptor::Entry;
    use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest};

    use super::*;

    fn message(descriptors: usize, key: &str) -> Vec<u8> {
        let entry = Entry { key: key.to_owned(), value: String::new() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor; descriptors], hits_addend: 3 }
            .encode_to_vec()
    }

    #[test]
    fn a_request_is_wide_by_its_descriptors_or_its_bytes() {
        for key in ["k", "a key that is rather long", &"k".repeat(300)] {
            assert!(!is_wide(&message(1, key)));
            assert!(!is_wide(&message(DESCRIPTORS_MAX, key)));
            assert!(is_wide(&message(DESCRIPTORS_MAX + 1, key)), "{key}");
        }
        assert!(is_wide(&message(1, &"k".repeat(MESSAGE_BYTES_MAX))));
    }

    #[test]
    fn what_is_no_message_is_not_wide() {
        assert!(!is_wide(&[]));
        assert!(!is_wide(&[0xff; MESSAGE_BYTES_MIN]));
        assert!(!is_wide(&[0x07; MESSAGE_BYTES_MIN]), "a wire type that there is not");
        let mut cut = message(DESCRIPTORS_MAX - 1, "key");
        cut.extend([0x12, 0xff, 0x01]);
        assert!(!is_wide(&cut), "longer than the rest");
    }
}
