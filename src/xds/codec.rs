//! Reads responses of the discovery service without copying the content of resources.
//!
//! The generated decoder would allocate a message for each resource before they are counted. Not here: the content of a
//! resource (resource.rs).

use prost::Message as _;
use prost::bytes::{Buf as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use weir_protobuf::{Content, field};

use super::proto::DiscoveryRequest;

/// The most resources of one response: as many domains as policy files.
pub const RESOURCES_MAX: usize = weir_policies::files::FILES_MAX;
/// The longest version and the longest nonce, in bytes. Both are stored and sent back.
pub const VERSION_BYTES_MAX: usize = 64 * 1_024;

#[derive(Debug, PartialEq)]
pub(super) struct Response {
    pub(super) version_info: String,
    /// The resources, in the order of the response. An error if there are too many; its text is for a NACK.
    pub(super) resources: Result<Vec<Resource>, String>,
    pub(super) type_url: String,
    pub(super) nonce: String,
    /// The length of the message.
    pub(super) bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource {
    pub type_url: String,
    /// Its message, a part of the response.
    pub value: Bytes,
}

#[derive(Default)]
pub(super) struct DiscoveryCodec;

impl Codec for DiscoveryCodec {
    type Encode = DiscoveryRequest;
    type Decode = Response;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for DiscoveryCodec {
    type Item = DiscoveryRequest;
    type Error = Status;

    fn encode(&mut self, request: DiscoveryRequest, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for DiscoveryCodec {
    type Item = Response;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Response>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        response(&bytes).map(Some).map_err(|reason| Status::internal(format!("not a DiscoveryResponse: {reason}")))
    }
}

/// Reads a response.
/// Fails when it is malformed, or its version or nonce is too long.
pub(super) fn response(bytes: &Bytes) -> Result<Response, String> {
    let mut resources = Vec::new();
    let mut sent = 0;
    let (mut version_info, mut type_url, mut nonce) = ("", "", "");
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match field(&mut rest).ok_or("bytes that are not a field")? {
            (1, Content::Bytes(version)) => version_info = short(version, "version_info")?,
            (2, Content::Bytes(resource)) => {
                sent += 1;
                if sent <= RESOURCES_MAX {
                    resources.push(Resource::read(bytes, resource)?);
                }
            }
            (4, Content::Bytes(url)) => type_url = text(url, "type_url")?,
            (5, Content::Bytes(text)) => nonce = short(text, "nonce")?,
            (1 | 2 | 4 | 5, _) => return Err("a field of another type".to_owned()),
            _ => {}
        }
    }
    let resources = if sent > RESOURCES_MAX {
        Err(format!("resources: {sent} resources, at most {RESOURCES_MAX}"))
    } else {
        Ok(resources)
    };
    let (version_info, type_url, nonce) = (version_info.to_owned(), type_url.to_owned(), nonce.to_owned());
    Ok(Response { version_info, resources, type_url, nonce, bytes: bytes.len() })
}

impl Resource {
    /// A resource in a part of `all`.
    fn read(all: &Bytes, mut part: &[u8]) -> Result<Self, String> {
        let mut resource = Self::default();
        let mut type_url = "";
        while !part.is_empty() {
            match field(&mut part).ok_or("a resource with bytes that are not a field")? {
                (1, Content::Bytes(url)) => type_url = text(url, "resources.type_url")?,
                (2, Content::Bytes(value)) => resource.value = all.slice_ref(value),
                (1 | 2, _) => return Err("a resource with a field of another type".to_owned()),
                _ => {}
            }
        }
        type_url.clone_into(&mut resource.type_url);
        Ok(resource)
    }
}

/// Reads a response and its resources.
/// Panics if the generated decoder reads it differently.
pub fn discovery(data: &[u8]) {
    use super::proto::DiscoveryResponse;

    let generated = DiscoveryResponse::decode(data);
    match response(&Bytes::copy_from_slice(data)) {
        Ok(read) => {
            let generated = generated.expect("only a message is a response");
            let texts = (&generated.version_info, &generated.type_url, &generated.nonce);
            assert_eq!((&read.version_info, &read.type_url, &read.nonce), texts);
            let Ok(mut resources) = read.resources else { return };
            let pairs = resources.iter().map(|resource| (&*resource.type_url, &resource.value[..]));
            assert!(pairs.eq(generated.resources.iter().map(|any| (&*any.type_url, &any.value[..]))));
            resources.iter_mut().for_each(|resource| super::TYPE_URL.clone_into(&mut resource.type_url));
            if let Err(problems) = super::resource::policies(&resources, data.len(), weir_policies::Dialect::default())
            {
                assert!(problems.count() > 0 && !problems.list().is_empty());
            }
        }
        Err(reason) => assert!(generated.is_err() && !reason.is_empty(), "{reason}"),
    }
}

fn short<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, String> {
    if bytes.len() > VERSION_BYTES_MAX {
        return Err(format!("{name}: {} bytes, at most {VERSION_BYTES_MAX}", bytes.len()));
    }
    text(bytes, name)
}

fn text<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, String> {
    str::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8"))
}

#[cfg(test)]
mod tests {
    use prost_types::Any;

    use super::super::proto::DiscoveryResponse;
    use super::*;

    fn read(message: &DiscoveryResponse) -> Result<Response, String> {
        response(&message.encode_to_vec().into())
    }

    #[test]
    fn a_response_is_read_as_by_the_generated_decoder() {
        let resource = |name: &str| Any { type_url: name.into(), value: name.as_bytes().repeat(3) };
        let message = DiscoveryResponse {
            version_info: "7".into(),
            resources: vec![resource("a"), Any::default(), resource("b")],
            type_url: "type".into(),
            nonce: "n".into(),
        };
        let read = read(&message).unwrap();
        let resources: Vec<Any> = read
            .resources
            .unwrap()
            .into_iter()
            .map(|Resource { type_url, value }| Any { type_url, value: value.into() })
            .collect();
        assert_eq!(resources, message.resources);
        assert_eq!((read.version_info, read.type_url, read.nonce), ("7".into(), "type".into(), "n".into()));
        for bytes in [&b"\x08\x01"[..], b"\x12\x7f", b"\x12\x02\x08\x01", b"\x12\x03\x0a\x01\xff", b"\x0a\x01\xff"] {
            assert!(response(&Bytes::from_static(bytes)).is_err(), "{bytes:02x?}");
            assert!(DiscoveryResponse::decode(bytes).is_err(), "{bytes:02x?}");
        }
    }

    #[test]
    fn a_million_empty_resources_are_counted_and_not_kept() {
        let message = Bytes::from([0x12, 0].repeat(1_000_000));
        let mut resources = None;
        let counted = allocation_counter::measure(|| resources = Some(response(&message).unwrap().resources));
        assert_eq!(resources, Some(Err("resources: 1000000 resources, at most 10000".to_owned())));
        assert!(counted.bytes_max < 2_000_000, "{counted:?}");
    }

    #[test]
    fn a_version_and_a_nonce_are_short() {
        let long = "x".repeat(VERSION_BYTES_MAX + 1);
        let error = read(&DiscoveryResponse { version_info: long.clone(), ..Default::default() }).unwrap_err();
        assert_eq!(error, "version_info: 65537 bytes, at most 65536");
        assert!(read(&DiscoveryResponse { nonce: long.clone(), ..Default::default() }).is_err());
        assert!(read(&DiscoveryResponse { nonce: long[1..].into(), ..Default::default() }).is_ok());
    }
}
