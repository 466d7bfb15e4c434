//! `weir completions` and `weir man`: what a shell and `man` show of the arguments.
//!
//! Not here: the arguments and their help (args.rs).

use std::io::{self, Write};

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator as _, Shell};
use clap_mangen::Man;
use weir_text::nearest;

use super::args::Arguments;

#[derive(Debug, thiserror::Error)]
pub enum NoPage {
    #[error("no command {name:?}{hint}")]
    Unknown {
        name: String,
        /// The probable name, or nothing.
        hint: String,
    },
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// The arguments with the names of all commands complete, such as `weir rows import`.
fn arguments() -> Command {
    let mut arguments = Arguments::command().bin_name("weir");
    arguments.build();
    arguments
}

/// Writes the completions of this shell.
///
/// # Errors
/// If writing fails.
pub fn completions(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    shell.try_generate(&arguments(), out)
}

/// Writes the manual page of this command. Without words, writes that of weir.
///
/// # Errors
/// If there is no such command, or writing fails.
pub fn page(words: &[String], out: &mut dyn Write) -> Result<(), NoPage> {
    let mut command = &arguments();
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| {
            let hint = nearest(word, command.get_subcommands().map(Command::get_name));
            NoPage::Unknown {
                name: word.clone(),
                hint: hint.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?")),
            }
        })?;
    }
    Ok(Man::new(command.clone()).render(out)?)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    fn paged(words: &[&str]) -> Result<String, String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let mut out = Vec::new();
        page(&words, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn every_command_is_completed_in_every_shell() {
        for &shell in Shell::value_variants() {
            let mut out = Vec::new();
            completions(shell, &mut out).expect("a script");
            let script = String::from_utf8(out).expect("text");
            for command in arguments().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(script.contains("fail-under"), "{shell}");
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let all = paged(&[]).expect("a page");
        for command in arguments().get_subcommands() {
            let name = command.get_name();
            assert!(all.contains(&format!("weir\\-{name}(1)")), "{name}: {all}");
            let page = paged(&[name]).expect("a page");
            assert!(page.contains(&format!(".TH weir-{name} 1")) && page.contains("\\fBweir"), "{name}: {page}");
        }
        let page = paged(&["rows", "import"]).expect("a page");
        assert!(page.contains("dry\\-run"), "{page}");
    }

    #[test]
    fn a_wrong_name_is_corrected() {
        assert_eq!(paged(&["chekc"]).unwrap_err(), r#"no command "chekc"; did you mean "check"?"#);
        assert_eq!(paged(&["rows", "?"]).unwrap_err(), r#"no command "?""#);
    }
}
