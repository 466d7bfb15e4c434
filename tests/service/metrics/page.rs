//! docs/metrics.md is made from the table of metrics.

use std::fs;
use std::path::{Path, PathBuf};

use weir_telemetry::metrics::table;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")
}

#[test]
fn docs_metrics_md_is_that_of_the_table() {
    let page = fs::read_to_string(path()).unwrap_or_default();
    let command = "cargo test --test service -- --ignored write_docs_metrics_md";
    assert!(page == table::page(), "docs/metrics.md differs from src/telemetry/metrics/table.rs: {command}");
}

#[test]
#[ignore = "writes docs/metrics.md"]
fn write_docs_metrics_md() {
    fs::write(path(), table::page()).expect("the page is written");
}
