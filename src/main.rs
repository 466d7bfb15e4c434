//! The binary: arguments in, exit status out. The only place that ends the process.
fn main() {}
