//! Compiles proto/.
fn main() {}
