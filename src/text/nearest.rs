//! The probable correction of a misspelled word.

/// The longest compared word, in bytes: the time of a comparison grows with the square.
const COMPARED_BYTES_MAX: usize = 64;

/// The probable correction: a known word that begins with the misspelled one (`min`), or that differs in at most a
/// third of its letters.
pub fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    const PREFIX_BYTES_MIN: usize = 3;
    if word.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        if candidate.len() > COMPARED_BYTES_MAX {
            continue;
        }
        let lower = candidate.to_lowercase();
        let is_start = word.len() >= PREFIX_BYTES_MIN && lower.starts_with(&word);
        let distance = if is_start { 1 } else { strsim::damerau_levenshtein(&word, &lower) };
        let letters = lower.chars().count();
        let close = distance < letters && distance <= (letters / 3).max(1);
        if close && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// As [`nearest`], but it differs by at most this many letters. For names that have most letters in common and mean other things.
pub fn nearest_within<'w>(word: &str, known: impl IntoIterator<Item = &'w str>, letters_max: usize) -> Option<&'w str> {
    let is_near = |near: &&str| strsim::damerau_levenshtein(&word.to_lowercase(), &near.to_lowercase()) <= letters_max;
    nearest(word, known).filter(is_near)
}
