//! Paths, kinds of files, and uploads.

use anyhow::{Result, ensure};
use testkit::node::Node;

use super::{Target, count_memory, highest_memory, until, wire};

const MIB: usize = 1 << 20;

/// What the server may need for any of this.
const MEMORY_MAX: usize = 32 * MIB;

pub(super) fn paths_and_kinds(node: &mut Node) -> Result<()> {
    let target = Target::new(node)?;
    paths(&target)?;
    let before = count_memory(target.node)?;
    kinds(&target)?;
    sparse(&target)?;
    let grown = highest_memory(target.node)?.saturating_sub(before);
    ensure!(grown < MEMORY_MAX, "the server grew by {grown} bytes");
    target.end()
}

/// A path is resolved once, and inside of the sandbox.
fn paths(target: &Target<'_>) -> Result<()> {
    target.shell("echo inside > /tmp/f")?;
    let long = format!("/tmp/{}", "a".repeat(5_000));
    let long_name = format!("/tmp/{}", "a".repeat(256));
    for (path, statuses) in [
        ("/tmp/f", &[200][..]),
        ("//tmp///f", &[200]),
        ("/tmp/x/../f", &[200]),
        ("/../../../tmp/f", &[200]),
        ("%2e%2e/%2e%2e/%2e%2e/tmp/f", &[200]),
        ("/tmp/%252e%252e/f", &[404]),
        ("/tmp/f%00", &[400]),
        ("%00", &[400]),
        ("/tmp/f%00.txt", &[400]),
        ("/tmp/%ff%fe", &[400, 404]),
        ("/tmp/%c0%ae%c0%ae/f", &[400, 404]),
        ("/tmp/f/", &[200, 400, 404]),
        ("/tmp/f/f", &[400, 404]),
        ("~root/f", &[400]),
        ("..%5c..%5cf", &[404]),
        (&long, &[400]),
        (&long_name, &[400]),
        ("", &[400]),
        ("/", &[400]),
        ("/proc/1/root/etc/hostname", &[400, 403, 404]),
        ("/proc/self/environ", &[400, 403, 404]),
        ("/proc/self/root/tmp/f", &[400, 403, 404]),
    ] {
        let (status, body) = target.get(path)?;
        ensure!(statuses.contains(&status), "{path:.60}: {status} {body:.200}");
        ensure!(status != 200 || body.contains("inside"), "{path:.60}: {body:.200}");
    }
    // Paths of the server itself: none leads from one service to another, none makes it fail.
    for path in ["/files/..%2f..%2fsandboxes", "/../sandboxes", "//files", "/files%00", "/%2e%2e/health", "/files/../x"]
    {
        let (status, body) = target.ask("GET", path, "", b"")?;
        ensure!((400..500).contains(&status), "{path}: {status} {body:.200}");
    }
    Ok(())
}

fn kinds(target: &Target<'_>) -> Result<()> {
    let make = "cd /home/user; mkfifo pipe; ln -s pipe link; ln -s loop loop; ln -s /dev/zero zero; mkdir d; \
                python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
    target.shell(make)?;
    for path in [
        "pipe",
        "link",
        "loop",
        "socket",
        "zero",
        "d",
        "/dev/zero",
        "/dev/full",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/random",
    ] {
        for (status, body) in [target.get(path)?, target.put(path, b"x")?] {
            ensure!((400..500).contains(&status), "{path}: {status} {body:.200}");
        }
        let compose = format!("{{\"sources\": [\"{path}\"], \"destination\": \"/tmp/composed\"}}");
        let json = "content-type: application/json\r\n";
        let (status, body) = target.ask("POST", "/files/compose", json, compose.as_bytes())?;
        ensure!((400..500).contains(&status), "joining {path}: {status} {body:.200}");
        let asked = format!("{{\"path\": \"{path}\"}}");
        let (status, body) = target.ask("POST", "/filesystem.Filesystem/CreateWatcher", json, asked.as_bytes())?;
        ensure!(path == "d" && status == 200 || (400..500).contains(&status), "watching {path}: {status} {body:.200}");
        let (status, body) = target.ask("POST", "/filesystem.Filesystem/Stat", json, asked.as_bytes())?;
        ensure!(status < 500, "looking at {path}: {status} {body:.200}");
    }
    // Files of the kernel are read within bounds, whatever their size is said to be.
    for path in ["/proc/cpuinfo", "/proc/meminfo", "/proc/kmsg", "/proc/kcore", "/proc/1/mem", "/sys/kernel/mm/ksm/run"]
    {
        let (status, body) = target.get(path)?;
        ensure!(status < 500 && body.len() <= MIB + 200, "{path}: {status}, {} bytes", body.len());
    }
    ensure!(target.shell("ls /tmp/composed 2>/dev/null; true")?.is_empty(), "something was joined");
    Ok(())
}

/// 8 TiB cost nothing until they are read.
fn sparse(target: &Target<'_>) -> Result<()> {
    target.shell("truncate -s 8T /home/user/sparse")?;
    let (status, body) = target.ask("GET", "/files?path=sparse", "range: bytes=-3\r\n", b"")?;
    ensure!(status == 206 && body == "\0\0\0", "{status} {body:?}");
    let (status, _) = target.ask("GET", "/files?path=sparse", "range: bytes=8796093022208-\r\n", b"")?;
    ensure!(status == 416, "{status}");
    let (status, _) = target.ask("GET", "/files?path=sparse", "range: bytes=18446744073709551615-\r\n", b"")?;
    ensure!(status == 416, "{status}");
    for headers in ["", "accept-encoding: gzip\r\n"] {
        let mut stream = wire::connect(&target.server.address)?;
        let head = target.head("GET", "/files?path=sparse", headers)?;
        std::io::Write::write_all(&mut stream, head.as_bytes())?;
        let mut beginning = vec![0; 64 << 10];
        std::io::Read::read_exact(&mut stream, &mut beginning)?;
        let text = String::from_utf8_lossy(&beginning).to_lowercase();
        ensure!(text.starts_with("http/1.1 200") && text.contains("content-length: 8796093022208"), "{text:.300}");
    }
    target.shell("rm /home/user/sparse")?;
    Ok(())
}

pub(super) fn uploads(node: &mut Node) -> Result<()> {
    let target = Target::new(node)?;
    broken_off(&target)?;
    full(&target)?;
    target.end()
}

fn broken_off(target: &Target<'_>) -> Result<()> {
    target.shell("mkdir /home/user/w; printf old > /home/user/w/old")?;
    let octets = "content-type: application/octet-stream\r\n";
    let form = "content-type: multipart/form-data; boundary=XX\r\n";
    let part = "--XX\r\ncontent-disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n";
    let chunk = format!("100000\r\n{}\r\n", "n".repeat(MIB));
    for name in ["w/old", "w/new"] {
        let path = format!("/files?path=/home/user/{name}");
        let begun = |headers: String, body: &str| -> Result<()> {
            let bytes = [target.head("POST", &path, &headers)?.as_bytes(), body.as_bytes()].concat();
            wire::break_off(&target.server.address, &bytes)
        };
        begun(format!("{octets}content-length: 9000000\r\n"), &"n".repeat(100))?;
        begun(format!("{octets}content-length: 9000000\r\n"), &"n".repeat(MIB))?;
        begun(format!("{octets}transfer-encoding: chunked\r\n"), &chunk)?;
        begun(format!("{form}content-length: 9000000\r\n"), &format!("{part}{}", "n".repeat(MIB)))?;
        // A whole body that is no whole form, and one that is no whole gzip.
        let (status, _) = target.ask("POST", &path, form, format!("{part}nnn\r\n--X").as_bytes())?;
        ensure!(status == 400, "a form without an end: {status}");
        let gzip = format!("{octets}content-encoding: gzip\r\n");
        let (status, _) = target.ask("POST", &path, &gzip, &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b])?;
        ensure!(status == 400, "half of a gzip stream: {status}");
    }
    until("the uploads have ended", || {
        let seen = target.shell("cd /home/user; cat w/old; ls -A w; ls -A /tmp /var/tmp | grep -c pando; true")?;
        Ok(seen == "oldold\n0\n")
    })
}

/// In memory, of 256 MiB.
fn full(target: &Target<'_>) -> Result<()> {
    target.shell("printf old > /dev/shm/old; head -c 300M /dev/zero > /dev/shm/full 2>/dev/null; true")?;
    for name in ["new", "old"] {
        for length in [20_000, 300_000] {
            let (status, body) = target.put(&format!("/dev/shm/{name}"), &vec![b'n'; length])?;
            ensure!(status == 507, "{name}, {length} bytes: {status} {body:.200}");
        }
    }
    let seen = target.shell("cd /dev/shm; cat old; ls")?;
    ensure!(seen == "oldfull\nold\n", "{seen}");
    target.shell("rm /dev/shm/full")?;
    let (status, _) = target.put("/dev/shm/old", &[b'n'; 20_000])?;
    ensure!(status == 200, "{status}");
    Ok(())
}
