//! Volumes on directories of the host, as administrators use them: remounts, fstab, who is in the way, what the cache takes.

use std::{
    fs,
    io::{ErrorKind, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};
use testkit::{node::Node, runner::Case};

use super::volumes::fails;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Node) -> Result<()>| {
        Case::new(format!("volumes_host::{name}"), move || {
            let node = Node::start()?;
            body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
            node.finish()
        })
    };
    vec![
        case("a_remount_of_one_mount_changes_no_other_and_no_new_one", remounted),
        case("a_busy_mount_names_who_keeps_it", busy),
        case("mount_of_the_system_knows_volumes", by_the_system),
        case("the_cache_that_volumes_fill_is_counted_and_emptied", cached),
    ]
}

/// Mounts the volume `ws` on a new directory of this name.
fn mounted(node: &Node, name: &str, options: &[&str]) -> Result<PathBuf> {
    let at = node.dir().join(name);
    fs::create_dir(&at)?;
    node.ok(&[&["volume", "mount", "ws", &at.display().to_string()], options].concat())?;
    Ok(at)
}

fn unmount_all(node: &Node, all: &[&Path]) -> Result<()> {
    all.iter().try_for_each(|at| node.ok(&["volume", "unmount", "ws", &at.display().to_string()]).map(drop))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn is_read_only(at: &Path) -> bool {
    fs::write(at.join("file"), "x").is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem)
}

fn remounted(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let (one, other) = (mounted(node, "one", &[])?, mounted(node, "other", &[])?);
    run(Command::new("mount").args(["-o", "remount,ro"]).arg(&one))?;
    // Also one that is made before the remount is seen.
    let new = mounted(node, "new", &[])?;
    ensure!(!is_read_only(&new), "a new mount is read-only");
    let until = Instant::now() + Duration::from_secs(10);
    while is_read_only(&other) {
        ensure!(Instant::now() < until, "a mount that nobody remounted stays read-only");
        sleep(Duration::from_millis(1));
    }
    ensure!(is_read_only(&one), "what was remounted is not read-only");
    ensure!(node.log()?.contains("was remounted read-only"), "nobody is told");
    run(Command::new("mount").args(["-o", "remount,rw"]).arg(&one))?;
    ensure!(!is_read_only(&one));
    unmount_all(node, &[&one, &other, &new])
}

/// A process that is ended with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn busy(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let at = mounted(node, "at", &[])?;
    fs::write(at.join("file"), "data")?;
    let unmount = ["volume", "unmount", "ws", &at.display().to_string()];
    let in_use_by = |what: &str| fails(node, &unmount, 1, &format!("in use by {what}"));
    let open = fs::File::open(at.join("file"))?;
    in_use_by(&format!("{} (", std::process::id()))?;
    drop(open);
    {
        let works_there = Ended(Command::new("sleep").arg("60").current_dir(&at).spawn()?);
        in_use_by(&format!("{} (sleep)", works_there.0.id()))?;
    }
    {
        let maps = "import mmap, sys, time; f = open('file', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=1); f.close()
import os; os.chdir('/'); open('/proc/self/comm', 'w').write('a\\033[31mb'); print('mapped', flush=True); time.sleep(60)";
        let mut maps =
            Command::new("python3").args(["-c", maps]).current_dir(&at).stdout(std::process::Stdio::piped()).spawn()?;
        let mut says = maps.stdout.take().context("no output")?;
        let maps = Ended(maps);
        says.read_exact(&mut [0; 6])?;
        in_use_by(&format!("{} (a?[31mb)", maps.0.id()))?;
    }
    fs::create_dir(at.join("inside"))?;
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(at.join("inside")))?;
    let refused = in_use_by(&format!("a mount on {}", at.join("inside").display()));
    rustix::mount::unmount(at.join("inside"), UnmountFlags::empty())?;
    refused?;
    unmount_all(node, &[&at])
}

/// By mount(8) with a line of fstab. The helper is in place in a mount namespace of its own; what it mounts shows in that of the node.
fn by_the_system(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let directory = |name: &str| -> Result<PathBuf> {
        let path = node.dir().join(name);
        fs::create_dir(&path)?;
        Ok(path)
    };
    let (helpers, first, second, third) = (directory("sbin")?, directory("a b")?, directory("c")?, directory("d")?);
    let pando = node.command_of(&[]).get_program().to_owned();
    for name in ["mount.pando", "mount.fuse.pando"] {
        symlink(&pando, helpers.join(name))?;
    }
    let fstab = node.dir().join("fstab");
    let (socket, escaped) = (node.socket.display(), first.display().to_string().replace(' ', "\\040"));
    fs::write(
        &fstab,
        format!(
            "ws {escaped} pando socket={socket},nofail,x-systemd.requires=pando.service 0 0\nws {} fuse.pando ro,socket={socket} 0 0\n",
            second.display()
        ),
    )?;
    let system = |script: String| {
        let place = format!("mount -t overlay none -o lowerdir={}:/usr/sbin /usr/sbin", helpers.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc"]).arg(format!("{place}\n{script}"));
        run(&mut command)
    };
    let fstab = fstab.display();
    system(format!("mount -a --fstab {fstab}"))?;
    fs::write(first.join("file"), "from fstab")?;
    ensure!(fs::read_to_string(second.join("file"))? == "from fstab" && is_read_only(&second));
    let line = fs::read_to_string("/proc/self/mounts")?
        .lines()
        .any(|line| line.starts_with(&format!("ws {escaped} fuse.pando rw,nosuid,nodev")));
    ensure!(line, "it does not show as what it is");
    // By words of its own; and what it cannot do.
    system(format!("mount -t pando -o ro,socket={socket} ws {}", third.display()))?;
    ensure!(is_read_only(&third));
    for wrong in ["ws -o noexec", "nothing"] {
        ensure!(system(format!("mount -t pando -o socket={socket} {wrong} {}", third.display())).is_err(), "{wrong}");
    }
    // The node sees by itself what umount(8) takes off.
    for at in [&first, &second, &third] {
        unmount(at, UnmountFlags::empty())?;
    }
    let until = Instant::now() + Duration::from_secs(20);
    while !node.ok(&["volume", "inspect", "ws"])?.contains("mounted by   nobody") {
        ensure!(Instant::now() < until, "it still counts as mounted");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn cached(node: &Node) -> Result<()> {
    const BYTES: usize = 4 << 20;
    node.ok(&["volume", "create", "ws"])?;
    let at = mounted(node, "at", &[])?;
    // What can be packed takes less of the cache.
    let mut noise = vec![0; BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut noise)?;
    fs::write(at.join("file"), &noise)?;
    unmount_all(node, &[&at])?;
    node.ok(&["volume", "snapshot", "ws", "then"])?;
    let cached = || -> Result<u64> {
        let stats = node.json(&["store", "stats", "--json"])?;
        stats["cache_bytes"].as_u64().context("no bytes")
    };
    // A snapshot is opened anew, and its data is read from the store.
    let read = || node.ok(&["volume", "cat", "ws@then", "file"]).map(drop);
    ensure!(cached()? < BYTES as u64 / 2, "the cache is filled already");
    read()?;
    let until = Instant::now() + Duration::from_secs(10);
    while cached()? < BYTES as u64 {
        ensure!(Instant::now() < until, "what volumes have cached is not counted: {}", cached()?);
        sleep(Duration::from_millis(10));
    }
    let before = cached()?;
    let collected = node.json(&["store", "gc", "--cache", "--dry-run", "--json"])?;
    ensure!(collected["cache_bytes"] == before && cached()? == before, "{collected}");
    ensure!(node.json(&["store", "gc", "--json"])?["cache_bytes"].is_null() && cached()? == before);
    let collected = node.json(&["store", "gc", "--cache", "--json"])?;
    ensure!(collected["cache_bytes"] == before && cached()? == 0, "{collected} {}", cached()?);
    read()
}
