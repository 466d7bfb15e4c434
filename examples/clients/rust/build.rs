//! Generates the messages from the proto files of this repository. Copy that folder into your service.

/// The folder of the proto files.
const PROTO: &str = "../../../proto";

fn main() {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [PROTO]).expect("the files of proto/");
    tonic_prost_build::configure()
        .build_server(false)
        .include_file("messages.rs")
        .compile_fds(files)
        .expect("Rust of the files of proto/");
}
