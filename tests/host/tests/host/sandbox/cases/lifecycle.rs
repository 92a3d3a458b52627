//! Creation, adoption, limits, the end.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base::id::SandboxId;
use rustix::process::Signal;
use sandbox::{ControllerHome, Error, ProcessIdentity, Sandbox, remove_directory, sweep as sweep_all};
use testkit::runner::reap;

use crate::sandbox::host::{Host, command, destroy, reap_all, shell, start, wait};

pub(crate) fn created_and_destroyed(host: &Host) {
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    assert!(sandbox.init().is_alive());
    assert_eq!(sandbox.processes().unwrap(), [sandbox.init().pid]);
    let init = sandbox.init();
    sandbox.destroy().unwrap();
    assert!(!init.is_alive());
    assert!(spec.dir.join("upper/etc/hostname").exists(), "the directory is the caller's to remove");
    remove_directory(&spec.dir).unwrap();
    assert!(!spec.dir.exists());
}

pub(crate) fn failed_creation(host: &Host) {
    // A layer that is not there; a directory that is in the way; an id that exists.
    let spec = host.spec_of(vec![host.mask(), PathBuf::from("/nowhere")]);
    let error = Sandbox::create(&spec, &host.cgroups).err().unwrap();
    assert_eq!(error.to_string(), "cannot open the layer /nowhere");
    assert!(!spec.dir.exists());

    let spec = host.spec();
    fs::create_dir_all(spec.dir.join("work")).unwrap();
    assert!(Sandbox::create(&spec, &host.cgroups).is_err());
    assert_eq!(fs::read_dir(&spec.dir).unwrap().count(), 1);
    fs::remove_dir_all(&spec.dir).unwrap();

    let mut spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    spec.dir = host.sandboxes().join("other");
    assert!(Sandbox::create(&spec, &host.cgroups).is_err());
    assert!(!spec.dir.exists() && sandbox.init().is_alive());
    destroy(sandbox);

    // The first process fails: the layers have no mount point.
    let empty = host.state().join("empty");
    fs::create_dir_all(&empty).unwrap();
    let other = host.state().join("other");
    fs::create_dir_all(&other).unwrap();
    let spec = host.spec_of(vec![empty, other]);
    let error = Sandbox::create(&spec, &host.cgroups).err().unwrap();
    assert!(matches!(&error, Error::Init { step, .. } if step == "mount /dev"), "{error}");
    assert!(!spec.dir.exists());
}

pub(crate) fn destroy_with_programs(host: &Host) {
    let sandbox = host.sandbox();
    let (first, _out) = start(&sandbox, &command(&["sleep", "1000"]));
    let (_second, _out) = start(&sandbox, &command(&["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"]));
    sandbox.freeze().unwrap();
    destroy(sandbox);
    assert_eq!(wait(first), 128 + 9);
    reap_all();
}

pub(crate) fn adopt(host: &Host) {
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let init = sandbox.init();
    drop(sandbox);
    let wrong = ProcessIdentity { start_ticks: init.start_ticks - 1, ..init };
    assert!(Sandbox::adopt(&spec, wrong, &host.cgroups).unwrap().is_none());
    let sandbox = Sandbox::adopt(&spec, init, &host.cgroups).unwrap().unwrap();
    assert_eq!(shell(&sandbox, "hostname").text.trim(), spec.id.as_str());
    destroy(sandbox);
    assert!(Sandbox::adopt(&spec, init, &host.cgroups).unwrap().is_none());
}

pub(crate) fn sweep(host: &Host) {
    let kept = host.spec();
    let sandbox = Sandbox::create(&kept, &host.cgroups).unwrap();
    let is_kept = |id: &SandboxId| *id == kept.id;
    let mut found = 0;
    for round in 0..40u64 {
        let spec = host.spec();
        let creator = sys::clone::fork(&Default::default(), || {
            let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
            let null = fs::File::open("/dev/null").unwrap();
            loop {
                sandbox.spawn(&command(&["sleep", "1000"]), [null.as_fd(); 3], None).unwrap();
            }
        })
        .unwrap();
        std::thread::sleep(Duration::from_micros(round * 250));
        rustix::process::pidfd_send_signal(&creator.pidfd, Signal::KILL).unwrap();
        let swept = sweep_all(&host.cgroups, &[host.sandboxes()], &is_kept).unwrap();
        assert!(swept.iter().all(|id| *id == spec.id));
        found += swept.len();
        // The creator may have been killed in the middle of a fork: its death is certain only now.
        wait(creator.pid);
        reap();
        found += sweep_all(&host.cgroups, &[host.sandboxes()], &is_kept).unwrap().len();
        assert!(!spec.dir.exists());
    }
    assert!(found > 20, "{found} of 40 creators got as far as leaving something");
    assert!(sandbox.init().is_alive());
    destroy(sandbox);
}

/// Nothing that a program does comes before its limits, whichever hierarchy has the controllers, and whoever forks it.
pub(crate) fn limits(host: &Host) {
    let summary = host.cgroups.summary();
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let parent = std::process::id();
    // The first one in a sandbox, and a later one.
    for _ in 0..2 {
        let groups = shell(&sandbox, "cat /proc/self/cgroup").text;
        for (home, name) in [(&summary.memory, "memory"), (&summary.pids, "pids"), (&summary.cpu, "cpu")] {
            let own = |line: &&str| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|one| one == name));
            let line = groups.lines().find(own);
            let in_its_group = line.is_some_and(|line| line.ends_with(spec.id.as_str()));
            assert!(in_its_group || !matches!(home, ControllerHome::V1(_)), "{name}: {groups}");
        }
    }
    if !matches!(summary.pids, ControllerHome::Missing(_)) {
        let output = shell(&sandbox, "for i in $(seq 100); do sleep 5 > /dev/null 2>&1 & done");
        assert!(output.code != 0 && output.text.contains("Cannot fork"), "{output:?}");
        let left = sandbox.processes().unwrap().len();
        assert!((60..=64).contains(&left), "{left}");
        // What cannot be started says why.
        let null = fs::File::open("/dev/null").unwrap();
        // The shell has ended: there is room for one more, or none, by how fast the kernel takes it apart.
        match sandbox.spawn(&command(&["true"]), [null.as_fd(); 3], None) {
            Ok(pid) => assert_eq!(wait(pid), 0),
            Err(error) => assert!(matches!(error, Error::TooManyTasks(_)), "{error}"),
        }
    }
    destroy(sandbox);
    let sandbox = host.sandbox();
    if !matches!(summary.memory, ControllerHome::Missing(_)) {
        for _ in 0..2 {
            let (pid, _output) = start(&sandbox, &command(&["python3", "-c", "print(len(bytearray(400 << 20)))"]));
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            assert!(
                status.is_empty() || status.contains(&format!("PPid:\t{parent}\n")),
                "not a child of its keeper: {status}"
            );
            assert_eq!(wait(pid), 128 + 9);
        }
    }
    assert_eq!(shell(&sandbox, "echo fine").text, "fine\n");
    destroy(sandbox);
}

/// A sandbox whose launcher was killed, as the kernel may when memory is short, gets another one.
pub(crate) fn launcher_killed(host: &Host) {
    if !matches!(host.cgroups.summary().pids, ControllerHome::V1(_)) {
        return host.skip("nobody needs a launcher where cgroup v2 has the controllers");
    }
    let sandbox = host.sandbox();
    assert_eq!(shell(&sandbox, "echo one").text, "one\n");
    let children = || {
        let text = fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
        let pids = text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()).collect::<Vec<_>>();
        let comm =
            |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "pando-launcher\n");
        pids.into_iter().filter(comm).collect::<Vec<_>>()
    };
    let before = children();
    assert_eq!(before.len(), 1);
    // It is not the sandbox's: no program sees it, it is not frozen with them, and it can be read by nobody who is not root.
    assert!(!sandbox.processes().unwrap().contains(&before[0]));
    rustix::process::kill_process(rustix::process::Pid::from_raw(before[0]).unwrap(), Signal::KILL).unwrap();
    wait(before[0]);
    assert_eq!(shell(&sandbox, "echo two").text, "two\n");
    assert_ne!(children(), before);
    destroy(sandbox);
    assert!(children().is_empty());
}

/// Gives a file its content back.
struct Restore<'a>(&'a std::path::Path, String);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        fs::write(self.0, &self.1).unwrap();
    }
}

/// Neighbours with limits of their own meet the limit that all have together, and the host's own processes do not.
pub(crate) fn tasks_together(host: &Host) {
    let summary = host.cgroups.summary();
    let parent = match &summary.pids {
        ControllerHome::V2 => &summary.group,
        ControllerHome::V1(directory) => directory,
        ControllerHome::Missing(reason) => return host.skip(&format!("no limit of tasks here: {reason}")),
    };
    let limit = parent.join("pids.max");
    let number = |path: &str| fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap();
    let of_host = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    let above = |group: &Path| fs::read_to_string(group.join("pids.max")).ok()?.trim().parse().ok();
    let share =
        parent.ancestors().skip(1).filter_map(above).fold(of_host, u64::min) * base::limits::PIDS_OF_HOST_PERCENT / 100;
    assert_eq!(fs::read_to_string(&limit).unwrap().trim(), share.to_string());
    let sandboxes = [host.sandbox(), host.sandbox()];
    // What cases before have killed counts until the kernel has taken it apart.
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::read_to_string(parent.join("pids.current")).unwrap().trim().parse::<u32>().unwrap() > 2 {
        assert!(Instant::now() < deadline, "tasks of other cases are left");
        std::thread::sleep(Duration::from_millis(1));
    }
    let _restore = Restore(&limit, share.to_string());
    // Each may have 64.
    fs::write(&limit, "80").unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let words = sandboxes.each_ref().map(|sandbox| {
        let (output, errors) = rustix::pipe::pipe().unwrap();
        let script = "for i in $(seq 55); do sleep 100 & done; echo all";
        sandbox.spawn(&command(&["sh", "-c", script]), [null.as_fd(), errors.as_fd(), errors.as_fd()], None).unwrap();
        // The shell writes its message in pieces.
        let mut line = String::new();
        BufReader::new(fs::File::from(output)).read_line(&mut line).unwrap();
        line
    });
    assert!(words[0].contains("all") && words[1].contains("Cannot fork"), "{words:?}");
    assert!(std::process::Command::new("true").status().unwrap().success());
    sandboxes.into_iter().for_each(destroy);
}

/// Programs have a high score, and so have their children; where the host lets it, none can lower it again.
pub(crate) fn memory_is_short(host: &Host) {
    let sandbox = host.sandbox();
    let score = "cat /proc/self/oom_score_adj";
    assert_eq!(shell(&sandbox, &format!("{score}; ({score}); sh -c '{score}'")).text, "500\n500\n500\n");
    let raised = format!("echo 700 > /proc/self/oom_score_adj; {score}");
    assert_eq!(shell(&sandbox, &raised).text, "700\n");
    let lowered = shell(&sandbox, &format!("echo 499 > /proc/self/oom_score_adj; {score}")).text;
    if sys::oom::lower_to(-1).is_ok() {
        sys::oom::set(0).unwrap();
        assert!(lowered.ends_with("\n500\n"), "{lowered}");
    } else {
        println!("       a program can lower its score here: without CAP_SYS_RESOURCE nobody can forbid that");
    }
    let init = fs::read_to_string(format!("/proc/{}/oom_score_adj", sandbox.init().pid)).unwrap();
    assert_eq!(init, "0\n");
    destroy(sandbox);
}

pub(crate) fn freeze(host: &Host) {
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let script = "i=0; while :; do i=$((i+1)); echo $i >> /tmp/count; done";
    let (_pid, _out) = start(&sandbox, &command(&["sh", "-c", script]));
    let count = || fs::read_to_string(spec.dir.join("upper/tmp/count")).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    sandbox.freeze().unwrap();
    let before = count();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(count(), before);
    let null = fs::File::open("/dev/null").unwrap();
    assert!(matches!(sandbox.spawn(&command(&["true"]), [null.as_fd(); 3], None), Err(Error::Frozen)));
    sandbox.thaw().unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_ne!(count(), before);
    destroy(sandbox);
}

pub(crate) fn times(host: &Host) {
    let mut times = [const { Vec::new() }; 4];
    let null = fs::File::open("/dev/null").unwrap();
    for _ in 0..50 {
        let begin = Instant::now();
        let sandbox = host.sandbox();
        times[0].push(begin.elapsed());
        let begin = Instant::now();
        let pid = sandbox.spawn(&command(&["/bin/true"]), [null.as_fd(); 3], None).unwrap();
        times[1].push(begin.elapsed());
        wait(pid);
        let begin = Instant::now();
        destroy(sandbox);
        times[2].push(begin.elapsed());
        times[3].push(install_time());
    }
    let program = sandbox::seccomp_program().unwrap();
    println!("seccomp program: {} instructions", program.len());
    for (name, times) in ["create", "spawn", "destroy", "seccomp install"].iter().zip(&mut times) {
        times.sort_unstable();
        println!("{name:16} median {:?}, p90 {:?}, max {:?}", times[25], times[45], times[49]);
    }
}

fn install_time() -> Duration {
    let program = sandbox::seccomp_program().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let child = sys::clone::fork(&Default::default(), || {
        rustix::thread::set_no_new_privs(true).unwrap();
        let begin = Instant::now();
        sys::seccomp::install(&program).unwrap();
        let time = begin.elapsed().as_nanos() as u64;
        rustix::io::write(&writer, &time.to_le_bytes()).unwrap();
        0
    })
    .unwrap();
    let mut time = [0; 8];
    rustix::io::read(&reader, &mut time).unwrap();
    assert_eq!(wait(child.pid), 0);
    Duration::from_nanos(u64::from_le_bytes(time))
}
