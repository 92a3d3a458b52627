//! Programs with seccomp filters that Pando did not give them.

use std::{
    fs::File,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use process::CaptureSpec;
use rustix::process::{Pid, WaitOptions};

use super::wait_until;
use crate::runner;

/// Filters beside the sandbox's own that are installed between the first look and the stop show in this only.
pub fn several_filters() -> Result<()> {
    // BPF_RET | BPF_K with SECCOMP_RET_ALLOW, as a sock_filter.
    const ALLOW: u64 = 0x7fff_0000_0000_0006;
    let status = |pid: &str, field: &str| -> Result<String> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
        Ok(value.with_context(|| format!("no {field}"))?.to_owned())
    };
    if status("self", "Seccomp")? != "0" {
        return runner::skip("this process has a seccomp filter, and then the kernel tells nobody who has one");
    }
    for (filters, expected) in [(0, None), (1, Some(false)), (2, Some(true))] {
        let child = sys::clone::fork(&sys::clone::ForkOptions::default(), || {
            let _ = rustix::thread::set_no_new_privs(true);
            (0..filters).for_each(|_| drop(sys::seccomp::install(&[ALLOW])));
            loop {
                rustix::event::pause();
            }
        })?;
        let pid = child.pid;
        let told = wait_until("it has its filters", Duration::from_secs(10), || {
            status(&pid.to_string(), "Seccomp_filters").is_ok_and(|count| count == filters.to_string())
        })
        .and_then(|()| {
            sys::ptrace::seize(pid, 0)?;
            sys::ptrace::interrupt(pid)?;
            sys::ptrace::wait(pid)?;
            Ok(sys::ptrace::has_several_filters(pid)?)
        });
        rustix::process::pidfd_send_signal(&child.pidfd, rustix::process::Signal::KILL)?;
        rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
        let told = told?;
        ensure!(told == expected, "{filters} filters: {told:?}");
    }
    Ok(())
}

/// Injected system calls are subject to the program's seccomp filter: one that forbids the clone of the still makes the capture fail. The
/// program has no sandbox, whose filter would be the one that is allowed.
pub fn outside_of_a_sandbox() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("pando-host-").tempdir()?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777))?;
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/programs");
    let path = |name: &str| dir.path().join(name);
    std::fs::copy(programs.join("refused"), path("refused")).context("run `make programs`")?;
    let output = File::create(path("output"))?;
    // A copy opens it again as the program's user.
    output.set_permissions(PermissionsExt::from_mode(0o666))?;
    let mut command = Command::new(path("refused"));
    command.arg("clone_filter").arg("--ready-file").arg(path("ready")).arg("--go").arg(path("go"));
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).current_dir("/").uid(1000).gid(1000);
    let mut child = command.spawn()?;
    if let Err(error) = wait_until("ready", Duration::from_secs(10), || path("ready").exists()) {
        child.kill()?;
        child.wait()?;
        return Err(error);
    }
    let spec = CaptureSpec {
        init: None,
        pid: child.id() as i32,
        streams: Vec::new(),
        earlier_arena: None,
        mount_points: Vec::new(),
        volumes: Vec::new(),
        commands: Vec::new(),
        without_program: false,
        started: Vec::new(),
        memory_files: None,
    };
    let mut copied = false;
    let captured = process::capture(&spec, &mut || {
        copied = true;
        Ok(())
    });
    std::fs::write(path("go"), "")?;
    let status = child.wait()?;
    match captured {
        Ok(_) => bail!("the filter was passed over"),
        Err(error) => ensure!(error.to_string().contains("could not be cloned"), "it failed otherwise: {error:#}"),
    }
    let printed = std::fs::read_to_string(path("output"))?;
    ensure!(copied && status.success() && printed == "ready\ndone\n", "the program did not go on: {status}, {printed}");
    Ok(())
}

/// The case before once more, in a pid namespace that its session and process group were not begun in: as `docker exec` and CI run it.
pub fn in_a_pid_namespace() -> Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(std::env::current_exe()?).arg("seccomp_stays_on");
    let output = command.output().context("unshare")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {printed}{complained}", output.status);
    ensure!(printed.contains("1 passed, 0 failed"), "the case was not run: {printed}");
    Ok(())
}
