//! The programs whose checkpoints are measured.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use api::{Limits, TemplateSpec};

use crate::{node::spec, program};

const INFERENCE: &str = include_str!("inference.py");
/// The Node.js service is more than one file.
const NODE_FILES: [(&str, &str); 3] = [
    ("server.js", include_str!("../../../../examples/node/server.js")),
    ("catalogue.js", include_str!("../../../../examples/node/catalogue.js")),
    ("ticker.js", include_str!("../../../../examples/node/ticker.js")),
];
/// Beside this program, and beside where it was built.
const GO_SERVICE: [&str; 2] = ["../examples/geo-go", "target/examples/geo-go"];
const INFERENCE_MIB: u32 = 4096;
const INFERENCE_QUICK_MIB: u32 = 512;
/// With what the service has of its own, 1 GB.
const LARGE_EXTRA_MIB: u32 = 900;
const CHECKPOINTS: usize = 5;
/// Each of the inference server fills gigabytes of disk until the node goes.
const LARGE_CHECKPOINTS: usize = 3;
/// The inference server fills its memory first.
const READY_MS: u64 = 600_000;

/// One of them.
pub(super) struct Program {
    /// In the report.
    pub(super) name: String,
    pub(super) spec: TemplateSpec,
    /// How often one is taken.
    pub(super) checkpoints: usize,
}

impl Program {
    fn new(name: &str, command: Vec<String>) -> Result<Self> {
        let mut spec = spec("measured", command)?;
        spec.ready_timeout_ms = READY_MS;
        Ok(Self { name: name.to_owned(), spec, checkpoints: CHECKPOINTS })
    }
}

/// The files of services, where sandboxes see them. Removed when dropped.
pub(super) struct Services {
    dir: PathBuf,
}

impl Services {
    /// In /opt: homes and scratch directories are hidden from sandboxes.
    pub(super) fn place() -> Result<Self> {
        let dir = PathBuf::from(format!("/opt/pando-bench-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let services = Self { dir };
        fs::set_permissions(&services.dir, fs::Permissions::from_mode(0o755))?;
        for (name, text) in NODE_FILES {
            services.write(name, text.as_bytes(), 0o644)?;
        }
        Ok(services)
    }

    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<String> {
        let path = self.dir.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path.display().to_string())
    }

    /// All, or why one cannot be measured.
    pub(super) fn programs(&self, quick: bool) -> Vec<Result<Program>> {
        let geo = |extra| program::geo(extra, program::PORT);
        let mut programs = vec![Program::new("CPython geo", geo(0))];
        if !quick {
            programs.push(Program::new("CPython geo, 1 GB", geo(LARGE_EXTRA_MIB)));
        }
        programs.extend([self.node(), self.go(), inference(if quick { INFERENCE_QUICK_MIB } else { INFERENCE_MIB })]);
        programs
    }

    fn node(&self) -> Result<Program> {
        let node = in_path("node").context("Node.js: no node in PATH")?;
        let server = self.dir.join("server.js").display().to_string();
        Program::new("Node.js", vec![node, server, "--port".into(), program::PORT.to_string()])
    }

    fn go(&self) -> Result<Program> {
        let here = std::env::current_exe()?;
        let beside = here.parent().map(|dir| dir.join(GO_SERVICE[0]));
        let built = beside.into_iter().chain([PathBuf::from(GO_SERVICE[1])]).find(|path| path.is_file());
        let built = built.context("Go: no target/examples/geo-go (make examples)")?;
        let service = self.write("geo-go", &fs::read(built)?, 0o755)?;
        Program::new("Go", vec![service, "--port".into(), program::PORT.to_string()])
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove the services of the bench");
        }
    }
}

fn inference(mib: u32) -> Result<Program> {
    let command = program::python(INFERENCE, &[&program::PORT.to_string(), &mib.to_string()]);
    let mut program = Program::new(&format!("inference, {mib} MiB"), command)?;
    // Half as much again for the interpreter and what filling takes.
    program.spec.limits = Limits { memory_bytes: (u64::from(mib) << 20) / 2 * 3, ..Limits::default() };
    program.checkpoints = LARGE_CHECKPOINTS;
    Ok(program)
}

fn in_path(program: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| Path::is_file(path))?;
    Some(found.display().to_string())
}
