//! Creation, adoption, limits, the end.

use std::{
    fs,
    os::fd::AsFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use base::id::SandboxId;
use pando_sandbox::{ControllerHome, Error, ProcessIdentity, Sandbox, remove_directory, sweep as sweep_all};
use rustix::process::Signal;

use crate::host::{Host, command, destroy, reap_all, shell, start, wait};

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
    let spec = host.spec_of(vec![empty.clone(), empty.join("../base/etc")]);
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
        let swept = sweep_all(&host.cgroups, &host.sandboxes(), &is_kept).unwrap();
        assert!(swept.iter().all(|id| *id == spec.id));
        found += swept.len();
        // The creator may have been killed in the middle of a fork: its death is certain only now.
        reap_all();
        found += sweep_all(&host.cgroups, &host.sandboxes(), &is_kept).unwrap().len();
        assert!(!spec.dir.exists());
    }
    assert!(found > 20, "{found} of 40 creators got as far as leaving something");
    assert!(sandbox.init().is_alive());
    destroy(sandbox);
}

pub(crate) fn limits(host: &Host) {
    let sandbox = host.sandbox();
    sandbox.bind_limits().unwrap();
    let summary = host.cgroups.summary();
    if !matches!(summary.pids, ControllerHome::Missing(_)) {
        let script = "read go; for i in $(seq 100); do sleep 5 & done";
        let (output, errors) = rustix::pipe::pipe().unwrap();
        let (input, go) = rustix::pipe::pipe().unwrap();
        let streams = [input.as_fd(), errors.as_fd(), errors.as_fd()];
        let pid = sandbox.spawn(&command(&["sh", "-c", script]), streams, None).unwrap();
        sandbox.bind_limits().unwrap();
        rustix::io::write(&go, b"go\n").unwrap();
        assert_ne!(wait(pid), 0);
        let mut text = [0; 100];
        let length = rustix::io::read(&output, &mut text).unwrap();
        assert!(String::from_utf8_lossy(&text[..length]).contains("fork"));
        assert!((60..=64).contains(&sandbox.processes().unwrap().len()));
    }
    // Also for what is put into the v2 group from outside afterwards.
    let script = "import time\nb = bytearray(1)\nprint('go', flush=True)\ntime.sleep(0.3)\nb = bytearray(400 << 20)\nprint('too much')";
    let (pid, reader) = start(&sandbox, &command(&["python3", "-c", script]));
    let mut word = [0; 3];
    std::io::Read::read_exact(&mut fs::File::from(reader.try_clone().unwrap()), &mut word).unwrap();
    sandbox.bind_limits().unwrap();
    if !matches!(summary.memory, ControllerHome::Missing(_)) {
        assert_eq!(wait(pid), 128 + 9);
    }
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
    let program = pando_sandbox::seccomp_program().unwrap();
    println!("seccomp program: {} instructions", program.len());
    for (name, times) in ["create", "spawn", "destroy", "seccomp install"].iter().zip(&mut times) {
        times.sort_unstable();
        println!("{name:16} median {:?}, p90 {:?}, max {:?}", times[25], times[45], times[49]);
    }
}

fn install_time() -> Duration {
    let program = pando_sandbox::seccomp_program().unwrap();
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
