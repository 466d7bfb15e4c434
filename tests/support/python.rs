//! The Python environment that scripts/test makes: clients and an Envoy that are not ours. A test
//! that needs it fails where it is missing or out of date; it is never skipped.

use std::path::PathBuf;

use super::tools::repository;

/// Names another environment than target/test-venv.
const VENV_VARIABLE: &str = "WEIR_TEST_VENV";

/// What scripts/test leaves in the environment: a copy of the requirements that it installed.
const STAMP: &str = "weir-requirements.txt";

/// The environment's directory; panics where it cannot be used.
pub fn venv() -> PathBuf {
    let venv = match std::env::var_os(VENV_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => repository().join("target/test-venv"),
    };
    let wanted = repository().join("tests/python/requirements.txt");
    let wanted = std::fs::read_to_string(&wanted).unwrap_or_else(|error| panic!("{}: {error}", wanted.display()));
    match std::fs::read_to_string(venv.join(STAMP)) {
        Ok(installed) if installed == wanted => venv,
        Ok(_) => panic!("the Python environment {} is out of date: run scripts/test, which renews it", venv.display()),
        Err(_) => panic!(
            "no Python environment in {}: run scripts/test, which makes it (or set {VENV_VARIABLE})",
            venv.display()
        ),
    }
}
