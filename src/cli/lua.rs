//! `weir lua`: prints the scripts that run in Redis, as assembled at build time.
//!
//! Not here: how they are assembled (lua/assemble.rs), and their meaning (lua/README.md).

use std::io::{self, Write};

use weir_text::nearest;

#[derive(Debug, thiserror::Error)]
pub enum NoScript {
    #[error("no script {name:?}; {hint}")]
    Unknown {
        name: String,
        /// The probable name, or how to list all names.
        hint: String,
    },
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Writes the script of this name exactly as Redis runs it. Without a name, writes the name and SHA-1 of each script.
///
/// # Errors
/// If there is no such script, or writing fails.
pub fn run(name: Option<&str>, out: &mut dyn Write) -> Result<(), NoScript> {
    let scripts = weir_store::redis::scripts();
    let Some(name) = name else {
        for script in scripts {
            writeln!(out, "{:<23} {}", script.name, script.sha1)?;
        }
        return Ok(());
    };
    match scripts.iter().find(|script| script.name == name) {
        Some(script) => Ok(out.write_all(script.text.as_bytes())?),
        None => {
            let hint = nearest(name, scripts.iter().map(|script| script.name))
                .map_or_else(|| "`weir lua` lists them".to_owned(), |meant| format!("did you mean {meant:?}?"));
            Err(NoScript::Unknown { name: name.to_owned(), hint })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: Option<&str>) -> Result<String, String> {
        let mut out = Vec::new();
        run(name, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn every_script_that_is_listed_is_printed() {
        let list = written(None).expect("a list");
        assert!(list.lines().count() > 3, "{list}");
        for line in list.lines() {
            let (name, sha1) = line.split_once(' ').expect("a name and a hash");
            assert_eq!(sha1.trim().len(), 40, "{line}");
            let text = written(Some(name)).expect("a script");
            assert!(text.starts_with("-- "), "{name} begins with what it is for");
            assert!(!text.contains("--@"), "{name} has a part of a skeleton in it");
            assert!(!text.contains('@'), "{name} has a name of a skeleton in it");
        }
    }

    #[test]
    fn a_wrong_name_is_corrected() {
        assert_eq!(written(Some("decid")).unwrap_err(), r#"no script "decid"; did you mean "decide"?"#);
        assert_eq!(written(Some("?")).unwrap_err(), r#"no script "?"; `weir lua` lists them"#);
    }
}
