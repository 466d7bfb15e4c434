//! The descriptors of a request in a test: in the short form of `weir explain`, or in full.

use weir_engine::Window;
use weir_engine::descriptor::parse_entries;
use weir_text::quoted;
use weir_text::yaml::{NodeId, Value};

use super::Descriptor;
use super::keys::{descriptor, entry, step};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};
use crate::{NAME_BYTES_MAX, Position, parse_rate_of_request};

impl FileReader<'_> {
    /// The descriptors and the hits of a request. The request's keys apply to descriptors that omit them.
    pub(crate) fn asked(&mut self, fields: &Fields) -> Result<(Vec<Descriptor>, Option<u32>), Reported> {
        let hits = self.hits_of(fields, 1);
        self.asked_for(fields, hits)
    }

    /// [`asked`](Self::asked) with hits that were read before.
    pub(crate) fn asked_for(
        &mut self,
        fields: &Fields,
        hits: Result<Option<u32>, Reported>,
    ) -> Result<(Vec<Descriptor>, Option<u32>), Reported> {
        let descriptors = self.descriptors_of(fields);
        let refund = self.read(fields, step::REFUND);
        let limit = self.read(fields, step::LIMIT);
        let (descriptors, hits, refund, limit) = (descriptors?, hits?, refund?, limit?);
        let descriptors = descriptors.into_iter().map(|own| Descriptor {
            // On the wire, 0 hits of a request mean 1. For a peek, each descriptor needs 0 hits.
            hits: own.hits.or(hits.filter(|hits| *hits == 0)),
            refund: own.refund || refund,
            limit: own.limit.or(limit),
            entries: own.entries,
        });
        Ok((descriptors.collect(), hits.filter(|hits| *hits > 0)))
    }

    /// The descriptors in `ask`: one short form, or a list of short and full forms.
    fn descriptors_of(&mut self, fields: &Fields) -> Result<Vec<Descriptor>, Reported> {
        let Some((at, id)) = fields.get(step::ASK) else { return Ok(Vec::new()) };
        let document = self.document;
        let node = document.node(id);
        match &node.value {
            Value::List(items) => {
                let mut descriptors = Vec::with_capacity(items.len());
                let mut result = Ok(());
                for &item in items {
                    match self.descriptor_of(document.node(item).position, item) {
                        Ok(descriptor) => descriptors.push(descriptor),
                        Err(reported) => result = Err(reported),
                    }
                }
                result.map(|()| descriptors)
            }
            _ => Ok(vec![self.descriptor_of(self.value_position(at, id), id)?]),
        }
    }

    fn descriptor_of(&mut self, at: Position, id: NodeId) -> Result<Descriptor, Reported> {
        let node = self.document.node(id);
        match &node.value {
            Value::Scalar { text, .. } => {
                let entries = self.short(at, text)?;
                Ok(Descriptor { entries, hits: None, refund: false, limit: None })
            }
            Value::Mapping(_) => self.full(id),
            Value::List(_) => Err(self.report(at, "a descriptor must be a text such as user=ann, or a mapping")),
        }
    }

    fn short(&mut self, at: Position, text: &str) -> Result<Vec<(String, String)>, Reported> {
        parse_entries(text).map_err(|reason| self.report(at, format!("descriptor {}: {reason}", quoted(text))))
    }

    fn full(&mut self, id: NodeId) -> Result<Descriptor, Reported> {
        let fields = self.fields(id, &descriptor::KIND)?;
        let entries = match (fields.get(descriptor::DESCRIPTOR), fields.get(descriptor::ENTRIES)) {
            (Some(_), Some((at, _))) => Err(self.report(at, "descriptor and entries: give one of them")),
            (None, None) => Err(self.report(fields.at, "a descriptor has neither descriptor nor entries")),
            (Some((at, id)), None) => match self.read(&fields, descriptor::DESCRIPTOR)? {
                Some(text) => self.short(self.value_position(at, id), &text),
                None => Err(self.report(at, "descriptor is empty: write entries: [] for one without entries")),
            },
            (None, Some(_)) => self.entries_of(&fields),
        };
        let hits = self.hits_of(&fields, 0);
        let refund = self.read(&fields, step::REFUND)?;
        let limit = self.read(&fields, step::LIMIT)?;
        Ok(Descriptor { entries: entries?, hits: hits?, refund, limit })
    }

    fn entries_of(&mut self, fields: &Fields) -> Result<Vec<(String, String)>, Reported> {
        let items = self.read(fields, descriptor::ENTRIES)?.unwrap_or_default();
        let mut entries = Vec::with_capacity(items.len());
        for item in items {
            let entry = self.fields(item, &entry::KIND)?;
            let key = self.read(&entry, entry::KEY)?;
            let value = self.read(&entry, entry::VALUE)?;
            entries.push((key.unwrap_or_default(), value.unwrap_or_default()));
        }
        Ok(entries)
    }

    /// The hits; `look` means 0. `least` is the smallest valid number.
    pub(crate) fn hits_of(&mut self, fields: &Fields, least: u32) -> Result<Option<u32>, Reported> {
        let hits = self.read(fields, step::HITS)?;
        let look = self.read(fields, step::LOOK)?;
        let refund = self.read(fields, step::REFUND)?;
        if look && (hits.is_some() || refund) {
            return Err(self.report_value(fields, step::LOOK, "a look has no hits, and gives none back".to_owned()));
        }
        match hits {
            _ if look => Ok(Some(0)),
            Some(hits) if hits < least => Err(self.report_value(
                fields,
                "hits",
                "0 hits: write look: true for a request that costs nothing".to_owned(),
            )),
            hits => Ok(hits),
        }
    }

    pub(crate) fn limit_of_request(&mut self, fields: &Fields, key: &'static str) -> Read<(u32, Window)> {
        let Some(text) = self.text(fields, key, NAME_BYTES_MAX)? else { return Ok(None) };
        parse_rate_of_request(&text).map(Some).map_err(|reason| self.report_value(fields, key, reason))
    }
}
