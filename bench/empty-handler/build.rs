//! Generates the wire types from weir's own proto files.

use std::error::Error;

const PROTO_ROOT: &str = "../../proto";
const SERVICE_PROTO: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_ROOT}");
    let mut compiler = protox::Compiler::new([PROTO_ROOT])?;
    compiler.include_imports(true).open_file(SERVICE_PROTO)?;
    tonic_prost_build::configure()
        .build_client(false)
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
