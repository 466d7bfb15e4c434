//! Tabs after a colon. YAML 1.2 counts them as white space; the parser refuses them before a plain text.
//!
//! Not here: tabs that would indent, which are refused.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

/// The text with a space in place of each tab that follows a colon, except inside quoted texts and blocks. None if no
/// colon has a tab after it. Reads at most `events_max` values: a longer text is refused for its length.
pub(super) fn after_colons_as_spaces(text: &str, events_max: usize) -> Option<String> {
    if !text.contains(":\t") {
        return None;
    }
    let spaced = text.replace(":\t", ": ");
    let mut restored = spaced.clone().into_bytes();
    // The places of the tabs: in characters, as the parser counts, and in bytes.
    let mut before = '\0';
    let mut tabs = text.char_indices().enumerate().filter_map(|(at, (byte, c))| {
        let is_after_colon = c == '\t' && before == ':';
        before = c;
        is_after_colon.then_some((at, byte))
    });
    let mut next = tabs.next();
    // A fault ends the reading of the result too, at the same place.
    let events = Parser::new_from_str(&spaced).map_while(Result::ok).take(events_max.saturating_mul(4));
    for (event, span) in events {
        if next.is_none() {
            break;
        }
        if !matches!(event, Event::Scalar(_, style, ..) if style != ScalarStyle::Plain) {
            continue;
        }
        while let Some((at, byte)) = next.filter(|(at, _)| *at < span.end.index()) {
            if at >= span.start.index() {
                restored[byte] = b'\t';
            }
            next = tabs.next();
        }
    }
    // Only ASCII was replaced, by ASCII.
    String::from_utf8(restored).ok()
}

/// The event without a reference to the parsed text.
pub(super) fn owned<'a>(event: Event<'_>) -> Event<'a> {
    let tag = |tag: Option<Cow<'_, Tag>>| tag.map(|tag| Cow::Owned(tag.into_owned()));
    match event {
        Event::Nothing => Event::Nothing,
        Event::StreamStart => Event::StreamStart,
        Event::StreamEnd => Event::StreamEnd,
        Event::DocumentStart(is_explicit) => Event::DocumentStart(is_explicit),
        Event::DocumentEnd => Event::DocumentEnd,
        Event::Alias(anchor) => Event::Alias(anchor),
        Event::Scalar(text, style, anchor, of) => Event::Scalar(Cow::Owned(text.into_owned()), style, anchor, tag(of)),
        Event::SequenceStart(anchor, of) => Event::SequenceStart(anchor, tag(of)),
        Event::SequenceEnd => Event::SequenceEnd,
        Event::MappingStart(anchor, of) => Event::MappingStart(anchor, tag(of)),
        Event::MappingEnd => Event::MappingEnd,
    }
}
