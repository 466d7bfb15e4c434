//! What each kind of setting accepts, and which values an error may print.
//!
//! Not here: the list of kinds (setting.rs), and how a text is parsed (value.rs and the files beside it).

use tokio_rustls::rustls::pki_types::ServerName;
use weir_engine::arith::Fraction;
use weir_text::{duration, spell};

use super::setting::{Kind, alternatives};
use super::value::{
    RedisUrl, VALUE_BYTES_MAX, address, header_name, headers, host_names, host_port, integer, key_prefix, log_level,
    name, pairs, secret_url, shorten, switch, url, url_path, words,
};
use super::{listen, statsd};

impl Kind {
    /// Checks a text.
    ///
    /// # Errors
    /// The reason, without the value and its place.
    pub fn check(&self, text: &str) -> Result<(), String> {
        if text.len() > VALUE_BYTES_MAX {
            return Err(format!("{} bytes: at most {VALUE_BYTES_MAX}", text.len()));
        }
        match *self {
            Self::Address => address(text).map(drop),
            Self::Endpoints => listen::grpc_listeners(text).map(drop),
            Self::Permissions => listen::mode(text).map(drop),
            Self::ClientNames => listen::client_names(text).map(drop),
            Self::Directory if text.is_empty() => Err("empty: a directory is needed".to_owned()),
            Self::Switch => switch(text).map(drop),
            Self::Choice(words) if words.contains(&text) => Ok(()),
            Self::Choice(words) => Err(format!("must be {}", alternatives(words))),
            Self::Integer { min, max, unit } => {
                let number: u64 = integer(text)?;
                if number < min || number > max {
                    return Err(format!("must be from {min} to {max} {unit}"));
                }
                Ok(())
            }
            Self::Fraction => text.parse::<Fraction>().map(drop),
            Self::Duration { min, max } => {
                let length = duration(text)?;
                if length < min || length > max {
                    return Err(format!("must be from {} to {}", spell(min), spell(max)));
                }
                Ok(())
            }
            Self::Tags => statsd::tags(text).map(drop),
            Self::Mogrifiers => statsd::mogrifiers(text).map(drop),
            Self::KeyPrefix { bytes_max } => key_prefix(text, bytes_max),
            Self::UrlPath { bytes_max } => url_path(text, bytes_max),
            Self::Secret | Self::File if text.is_empty() => Err("empty: remove the setting instead".to_owned()),
            Self::Directory | Self::File | Self::Secret => Ok(()),
            Self::Name { bytes_max } => name(text, bytes_max),
            Self::HeaderName => header_name(text),
            Self::ServerName => match ServerName::try_from(text) {
                Ok(_) => Ok(()),
                Err(_) => Err("neither a DNS name nor an IP".to_owned()),
            },
            Self::HostPort => host_port(text).map(drop),
            Self::Pairs { between } => pairs(text, between).map(drop),
            Self::Headers => headers(text).map(drop),
            Self::HostNames { most } => {
                let names = host_names(text)?;
                if names.len() > most { Err(format!("{} names, at most {most}", names.len())) } else { Ok(()) }
            }
            Self::Origins { most } => {
                let origins = listen::origins(text)?;
                if origins.len() > most { Err(format!("{} origins, at most {most}", origins.len())) } else { Ok(()) }
            }
            Self::Url => url(text).map(drop),
            Self::SecretUrl => secret_url(text),
            Self::Words(known) => words(text, known).map(drop),
            Self::RedisUrl => text.parse::<RedisUrl>().map(drop),
            Self::LogLevel => log_level(text),
        }
    }

    /// Whether a value can hold a secret, so that no error prints it. The address of a server can have a login or a key,
    /// in any part of a misspelled text.
    const fn is_secret(&self) -> bool {
        matches!(
            self,
            Self::Secret
                | Self::Headers
                | Self::RedisUrl
                | Self::Url
                | Self::SecretUrl
                | Self::HostPort
                | Self::Origins { .. }
        )
    }

    /// The value for an error message. None if it can hold a secret.
    pub(super) fn show(&self, text: &str) -> Option<String> {
        (!self.is_secret()).then(|| shorten(text))
    }
}
