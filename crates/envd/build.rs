//! Makes Rust code of the two services in `proto`, without a compiler that the machine would have to have.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["process.proto", "filesystem.proto"];
    let descriptors = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("services.binpb");
    let compiled = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(files)?
        .encode_file_descriptor_set();
    std::fs::write(&descriptors, compiled)?;
    for file in files {
        println!("cargo::rerun-if-changed=proto/{file}");
    }
    connectrpc_build::Config::new()
        .descriptor_set(descriptors)
        .files(&files)
        .gate_client_feature(true)
        .emit_rerun_directives(false)
        .include_file("_connectrpc.rs")
        .compile()?;
    Ok(())
}
