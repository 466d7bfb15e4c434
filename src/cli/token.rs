//! The token that a command sends to a server with `admin.token_file`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The longest token, in bytes.
const BYTES_MAX: u64 = 4_096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token(Option<String>);

impl Token {
    /// Reads the token from a file, without surrounding blanks. None without a file.
    ///
    /// # Errors
    /// If the file has no token. The message has the flag and the path.
    pub fn of_file(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self(None)) };
        let unusable = |reason: &dyn std::fmt::Display| format!("--token-file {}: {reason}", path.display());
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
        read.map_err(|error| unusable(&error))?;
        let token = bytes.trim_ascii();
        if bytes.len() as u64 > BYTES_MAX {
            return Err(unusable(&format!("more than {BYTES_MAX} bytes")));
        }
        if token.is_empty() {
            return Err(unusable(&"empty: write the token into it"));
        }
        match std::str::from_utf8(token) {
            Ok(token) if token.chars().all(|c| c.is_ascii_graphic()) => Ok(Self(Some(token.to_owned()))),
            _ => Err(unusable(&"a token is one ASCII word, without its name on the server")),
        }
    }

    pub fn text(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Advice if a server refuses the token.
    pub const fn advice(&self) -> &'static str {
        match self.0 {
            Some(_) => "the token of --token-file is not one of them",
            None => "give the command a file with the token: --token-file FILE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            Token::of_file(Some(file.path()))
        };
        assert_eq!(with(b" s3cret\n").unwrap().text(), Some("s3cret"));
        assert_eq!(Token::of_file(None).unwrap().text(), None);
        for (bytes, reason) in [
            (&b" \n"[..], "empty"),
            (b"ann s3cret", "one ASCII word"),
            (&[0xff, 0xfe], "one ASCII word"),
            (&[b'x'; 4_097], "more than 4096 bytes"),
        ] {
            let refused = with(bytes).unwrap_err();
            assert!(refused.starts_with("--token-file /") && refused.contains(reason), "{refused}");
        }
        let missing = Token::of_file(Some(Path::new("/nowhere/token"))).unwrap_err();
        assert!(missing.starts_with("--token-file /nowhere/token: No such file"), "{missing}");
    }
}
