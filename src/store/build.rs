//! Assembles the scripts of lua/.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[path = "../../lua/assemble.rs"]
mod assemble;

/// The folder of the Redis side of the algorithms.
const LUA_ROOT: &str = "../../lua";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LUA_ROOT}");
    match assemble_scripts() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            for line in problem.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes the scripts that run in Redis.
fn assemble_scripts() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    assemble::assemble(Path::new(LUA_ROOT), &out.join("lua"))?;
    Ok(())
}
