//! Keeps the texts of the loaded policy files, as compressed JSON, for readers of a running server.
//!
//! ```json
//! {"compatible": false, "merge_domains": false, "calendar_months": false, "files": [{"name": "shop.yaml", "text": "domain: shop"}]}
//! ```
//!
//! With overlays there is also `"overlay": {"name": "shop.overlay.yaml", "text": "overlays: []"}`. Policies that were not
//! read from text have a `tree` in place of a `text`. Not here: what reads them (http, cli).

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::Dialect;
use super::overlay::OverlayFile;
use super::tree::Tree;

/// The most compressed bytes. Larger policies are not kept.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// None if the sources were too large.
pub type Kept = Option<Arc<KeptSources>>;

/// The sources, and what a reader of some domains needs.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptSources {
    /// Compressed with gzip. A line for what is before the files, one for each file, and one for the end.
    pub packed: Arc<[u8]>,
    /// The domain of each file.
    pub domains: Arc<[Arc<str>]>,
    /// Whether there are overlays, which concern any domain.
    pub has_overlays: bool,
}

#[derive(Debug)]
pub(super) struct Keeper {
    /// None if the sources were too large.
    encoder: Option<GzEncoder<Vec<u8>>>,
    domains: Vec<Arc<str>>,
    has_overlays: bool,
    bytes_max: usize,
}

/// The kept sources after decompression.
#[derive(Debug, Deserialize)]
pub struct Sources {
    /// Whether they were read in a compatible [`Dialect`](crate::Dialect).
    pub compatible: bool,
    /// Whether files of one domain were joined.
    pub merge_domains: bool,
    /// Whether months without `calendar` are those of the calendar.
    pub calendar_months: bool,
    #[serde(default)]
    pub(super) overlay: Option<OverlayFile>,
    pub(super) files: Vec<File>,
}

#[derive(Debug, Deserialize)]
pub(super) struct File {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Content {
    Text(String),
    Tree(Tree<'static>),
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Written<'a> {
    Text(&'a str),
    Tree(&'a Tree<'a>),
}

#[derive(Serialize)]
struct WrittenFile<'a> {
    name: &'a str,
    #[serde(flatten)]
    content: Written<'a>,
}

/// Decompresses kept sources. None for other bytes.
pub(super) fn unpacked(kept: &Arc<KeptSources>) -> Option<Sources> {
    let mut text = String::new();
    GzDecoder::new(&*kept.packed).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

impl Sources {
    pub fn rename(&mut self, to: impl Fn(&str) -> String) {
        if let Some(overlay) = &mut self.overlay {
            overlay.rename(&to);
        }
        for file in &mut self.files {
            file.name = to(&file.name);
        }
    }

    pub(super) fn texts(self) -> HashMap<String, String> {
        let text = |file: File| match file.content {
            Content::Text(text) => Some((file.name, text)),
            Content::Tree(_) => None,
        };
        self.files.into_iter().filter_map(text).collect()
    }
}

impl Keeper {
    pub(super) fn new(dialect: Dialect, overlay: Option<&OverlayFile>) -> Self {
        // Each load waits for the compression, so speed matters more than size.
        let mut keeper = Self {
            encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
            domains: Vec::new(),
            has_overlays: overlay.is_some(),
            bytes_max: KEPT_BYTES_MAX,
        };
        let Dialect { compatible, merge_domains, calendar_months } = dialect;
        let head = format!(
            "{{\"compatible\":{compatible},\"merge_domains\":{merge_domains},\"calendar_months\":{calendar_months},"
        );
        keeper.add(|encoder| encoder.write_all(head.as_bytes()));
        if let Some(overlay) = overlay {
            keeper.add(|encoder| {
                encoder.write_all(b"\"overlay\":")?;
                serde_json::to_writer(&mut *encoder, overlay).map_err(io::Error::from)?;
                encoder.write_all(b",")
            });
        }
        keeper.add(|encoder| encoder.write_all(b"\"files\":[\n"));
        keeper
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.file(&WrittenFile { name, content: Written::Text(text) });
    }

    pub(super) fn tree(&mut self, name: &str, tree: &Tree<'_>) {
        self.file(&WrittenFile { name, content: Written::Tree(tree) });
    }

    pub(super) fn finish(mut self) -> Kept {
        self.add(|encoder| encoder.write_all(b"]}"));
        let Self { encoder, domains, has_overlays, bytes_max } = self;
        let packed = encoder?.finish().ok().filter(|bytes| bytes.len() <= bytes_max)?;
        Some(Arc::new(KeptSources { packed: packed.into(), domains: domains.into(), has_overlays }))
    }

    /// Sets the domain of the last file. Each file in force has one.
    pub(super) fn is_of(&mut self, domain: Option<&Arc<str>>) {
        if let (Some(last), Some(domain)) = (self.domains.last_mut(), domain) {
            *last = domain.clone();
        }
    }

    fn file(&mut self, file: &WrittenFile<'_>) {
        let is_first = self.domains.is_empty();
        self.domains.push(Arc::default());
        self.add(|encoder| {
            encoder.write_all(if is_first { b"" } else { b"," })?;
            // JSON has no line end inside.
            serde_json::to_writer(&mut *encoder, file).map_err(io::Error::from)?;
            encoder.write_all(b"\n")
        });
    }

    fn add(&mut self, write: impl FnOnce(&mut GzEncoder<Vec<u8>>) -> io::Result<()>) {
        let Some(encoder) = &mut self.encoder else { return };
        if write(encoder).is_err() || encoder.get_ref().len() > self.bytes_max {
            self.encoder = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Restless, load, load_and_keep, load_sources, read_trees};
    use super::*;

    fn unpacked(kept: &Kept) -> Sources {
        super::unpacked(kept.as_ref().unwrap()).unwrap()
    }

    #[test]
    fn files_are_read_again_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.yaml", "domain: shop\ndescriptors:\n  - {key: \"a\\\"b\", rate_limit: {rate: 3/h}}\n  - {key: k}\n"),
            ("b.yaml", "# Größe\ndomain: blog\ndescriptors: []\n"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let first = load_and_keep(&dir.path().into(), Dialect::default(), &Restless::default()).unwrap();
        let again = load_sources(unpacked(&first.kept)).unwrap();
        assert_eq!(format!("{:?}", first.policies.rules()), format!("{:?}", again.policies.rules()));
        assert_eq!((first.places, first.files), (again.places, again.files));
        assert_eq!(first.warnings.to_string(), again.warnings.to_string());
        assert_eq!(format!("{:?}", first.domains), format!("{:?}", again.domains));
        // Only a load for use keeps the sources.
        assert_eq!(load(&dir.path().into(), Dialect::default()).unwrap().kept, None);
    }

    #[test]
    fn trees_are_read_again_to_the_same() {
        let text = |text: &'static str| Tree::Text(text.into());
        let mapping = |entries: Vec<(&'static str, Tree<'static>)>| {
            Tree::Mapping(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
        };
        let limit = mapping(vec![("unit", text("hour")), ("requests_per_unit", Tree::Plain("3".into()))]);
        let user = mapping(vec![("key", text("user")), ("value", text("5")), ("rate_limit", limit)]);
        let shop = mapping(vec![("domain", text("shop")), ("descriptors", Tree::List(vec![user]))]);
        let dialect = Dialect { compatible: true, merge_domains: true, calendar_months: true };
        let first = read_trees([("shop".to_owned(), Ok(shop))], dialect).unwrap();
        let sources = unpacked(&first.kept);
        assert!(sources.compatible && sources.merge_domains && sources.calendar_months);
        let again = load_sources(sources).unwrap();
        assert_eq!(format!("{:?}", first.policies.rules()), format!("{:?}", again.policies.rules()));
        assert_eq!(first.places, again.places);
    }

    #[test]
    fn no_files_are_kept_too_and_too_many_bytes_are_not() {
        let none = Keeper::new(Dialect::default(), None).finish();
        assert_eq!(load_sources(unpacked(&none)).unwrap().policies.domains().len(), 0);
        // Pseudo-random bytes do not compress.
        let mut state = 1_u64;
        let mut noise = || {
            let mut text = String::new();
            for _ in 0..4_096 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(&format!("{state:016x}"));
            }
            text
        };
        let mut keeper = Keeper { bytes_max: 100_000, ..Keeper::new(Dialect::default(), None) };
        for file in 0..10 {
            keeper.text("noise.yaml", &noise());
            assert!(keeper.encoder.as_ref().is_none_or(|encoder| encoder.get_ref().len() <= 100_000), "{file}");
        }
        assert_eq!(keeper.finish(), None);
    }
}
