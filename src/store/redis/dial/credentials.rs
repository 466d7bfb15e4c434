//! The user, password and database of a Redis.
//!
//! Each dial reads the password file again, so you can replace the file without a restart. If the new file cannot be
//! used, the last good password stays in use, and the observer reports the file.
//!
//! Not here: how a file is read off the runtime and cached (src/tls/files.rs).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redis::RedisConnectionInfo;
use weir_tls::files::{self, FileError, OneAtATime, Reread};

use crate::redis::base::observer::RedisObserver;

/// The largest password file, in bytes, including its line end.
pub const PASSWORD_FILE_BYTES_MAX: u64 = 4096;

/// The login of one dial.
#[derive(Default)]
pub(crate) struct Login {
    pub(crate) username: Option<Box<str>>,
    pub(crate) password: Option<Arc<str>>,
    /// 0 is the database of a new connection.
    pub(crate) database: i64,
}

/// User, password and database. Clones share the content of a password file.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    username: Option<Box<str>>,
    password: Password,
    database: i64,
}

#[derive(Clone, Default)]
enum Password {
    #[default]
    None,
    Given(Arc<str>),
    File(Arc<PasswordFile>),
}

struct PasswordFile {
    path: PathBuf,
    reread: Reread<Arc<str>>,
    gate: OneAtATime,
}

impl Credentials {
    /// The credentials that redis-rs read from a URL.
    pub(crate) fn of(login: &RedisConnectionInfo) -> Self {
        Self {
            username: login.username().map(Into::into),
            password: login.password().map_or(Password::None, |password| Password::Given(password.into())),
            database: login.db(),
        }
    }

    /// Replaces each part that is given.
    pub(crate) fn replace(&mut self, username: Option<&str>, password: Option<&str>) {
        if let Some(username) = username {
            self.username = Some(username.into());
        }
        if let Some(password) = password {
            self.password = Password::Given(password.into());
        }
    }

    /// Reads the password from a file at each dial.
    pub(crate) fn read_password_from(&mut self, path: &Path) {
        let file = PasswordFile { path: path.to_owned(), reread: Reread::default(), gate: OneAtATime::default() };
        self.password = Password::File(Arc::new(file));
    }

    /// Reads the file that a dial would read.
    /// Fails when the file cannot be used.
    pub(crate) fn check(&self) -> Result<(), FileError> {
        match &self.password {
            Password::File(file) => file.read(&()).map(drop),
            Password::None | Password::Given(_) => Ok(()),
        }
    }

    /// The login of one dial.
    /// Fails when the password file was never readable, for people.
    pub(super) async fn login(&self, observer: &Arc<dyn RedisObserver>) -> Result<Login, String> {
        let password = match &self.password {
            Password::None => None,
            Password::Given(password) => Some(password.clone()),
            Password::File(file) => {
                let (reader, observer) = (file.clone(), observer.clone());
                Some(files::off_the_runtime(&file.gate, move || reader.read(&*observer)).await?)
            }
        };
        Ok(Login { username: self.username.clone(), password, database: self.database })
    }
}

impl PasswordFile {
    fn read(&self, observer: &dyn RedisObserver) -> Result<Arc<str>, FileError> {
        self.reread.read(
            |error| observer.file_refused(error),
            |_| {
                let refused = |reason: &str| FileError::new(&self.path, reason);
                let bytes = files::read_bounded(&self.path, PASSWORD_FILE_BYTES_MAX)?;
                // No error shows the content of the file.
                let text = String::from_utf8(bytes).map_err(|_| refused("not UTF-8"))?;
                let text = text.strip_suffix('\n').unwrap_or(&text);
                let text = text.strip_suffix('\r').unwrap_or(text);
                if text.is_empty() {
                    return Err(refused("contains no password"));
                }
                Ok(text.into())
            },
        )
    }
}
