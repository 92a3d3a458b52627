//! Programs in sandboxes.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionbio,
};
use sandbox::{Command, Error};

use crate::sandbox::host::{Host, command, destroy, run, shell, start, wait};

pub(crate) fn orphans(host: &Host) {
    let sandbox = host.sandbox();
    shell(&sandbox, "for i in 1 2 3 4 5; do (sleep 0.0$i &) ; done");
    std::thread::sleep(Duration::from_millis(200));
    let states = shell(&sandbox, "cat /proc/[0-9]*/stat | awk '{print $3}' | grep -c Z").text;
    assert_eq!(states, "0\n");
    assert_eq!(sandbox.processes().unwrap().len(), 1);
    destroy(sandbox);
}

pub(crate) fn errors(host: &Host) {
    let sandbox = host.sandbox();
    let null = fs::File::open("/dev/null").unwrap();
    let fail = |command: &Command| sandbox.spawn(command, [null.as_fd(); 3], None).unwrap_err();
    for (argv, errno) in [("no-such-program", libc::ENOENT), ("/etc/passwd", libc::EACCES), ("/root/x", libc::EACCES)] {
        match fail(&command(&[argv])) {
            Error::Exec { command, source } => {
                assert_eq!((command.as_str(), source.raw_os_error()), (argv, Some(errno)))
            }
            other => panic!("{other}"),
        }
    }
    let elsewhere = Command { cwd: "/root".to_owned(), ..command(&["true"]) };
    let error = fail(&elsewhere);
    assert_eq!(error.to_string(), "cannot start \"true\" in the sandbox: enter its working directory /root");
    let late = Command { group: Some("late".to_owned()), until_ns: Some(1), ..command(&["true"]) };
    assert!(matches!(fail(&late), Error::Late { .. }), "who wanted it gave up before");
    assert!(matches!(fail(&command(&[])), Error::NoProgram));
    assert!(matches!(fail(&command(&["a\0b"])), Error::Exec { .. }));
    assert_eq!(sandbox.processes().unwrap().len(), 1);
    destroy(sandbox);
}

pub(crate) fn terminal(host: &Host) {
    let sandbox = host.sandbox();
    // The server's terminal is of the host's devpts; what matters is that the program can use it as its own.
    let controller = rustix::pty::openpt(
        rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC,
    )
    .unwrap();
    rustix::pty::unlockpt(&controller).unwrap();
    let name = rustix::pty::ptsname(&controller, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let user = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    let tty = Command {
        tty: true,
        group: None,
        until_ns: None,
        ..command(&[
            "sh",
            "-c",
            "echo hello > /dev/tty; test -t 0 && stty -a | head -1; exec 3<>/dev/ptmx && ls /dev/pts",
        ])
    };
    let pid = sandbox.spawn(&tty, [user.as_fd(); 3], None).unwrap();
    drop(user);
    assert_eq!(wait(pid), 0);
    let (mut text, mut part) = (String::new(), [0; 4096]);
    // A read gives a line or more; EIO: the other side is closed and all is read.
    while let Ok(length @ 1..) = rustix::io::read(&controller, &mut part) {
        text.push_str(&String::from_utf8_lossy(&part[..length]));
    }
    assert!(text.starts_with("hello") && text.contains("speed") && text.contains("ptmx"), "{text}");
    destroy(sandbox);
}

pub(crate) fn dial(host: &Host) {
    let sandbox = host.sandbox();
    shell(&sandbox, "echo from-inside > index.html");
    let (_pid, _out) = start(&sandbox, &command(&["python3", "-m", "http.server", "8000"]));
    let text = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        answer(sandbox::dial(sandbox.init(), std::net::Ipv4Addr::LOCALHOST.into(), 8000).ok()?.into())
    });
    assert!(text.unwrap().ends_with("from-inside\n"));
    assert!(TcpStream::connect("127.0.0.1:8000").is_err(), "the port is the sandbox's own");
    destroy(sandbox);
}

fn answer(socket: OwnedFd) -> Option<String> {
    let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)], Some(&timeout)).unwrap();
    rustix::net::sockopt::socket_error(&socket).ok()?.ok()?;
    ioctl_fionbio(&socket, false).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

pub(crate) fn devices(host: &Host) {
    let sandbox = host.sandbox();
    let script = "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; echo out > /dev/stdout; \
                  echo s > /dev/shm/s; cat < /dev/fd/0; echo $(ls /dev); mknod /tmp/n c 1 3 2>&1 | grep -c permitted";
    let output = shell(&sandbox, script);
    assert_eq!(
        output.text,
        "4\n4\nout\nfd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero\n1\n"
    );
    let shared =
        "import multiprocessing as m; l = m.Lock(); s = m.shared_memory if 0 else None; print('locked', l.acquire())";
    assert_eq!(run(&sandbox, &["python3", "-c", shared]).text, "locked True\n");
    destroy(sandbox);
}

pub(crate) fn low_descriptors(host: &Host) {
    let sandbox = host.sandbox();
    // The caller's own 2, 1, 0 in an order that a naive dup2 sequence would destroy.
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let child = sys::clone::fork(&Default::default(), || {
        let null = fs::File::open("/dev/null").unwrap();
        sys::child::become_stdio([writer.as_fd(), null.as_fd(), null.as_fd()]).unwrap();
        let (input, output, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let pid =
            sandbox.spawn(&command(&["echo", "right"]), [output.as_fd(), input.as_fd(), errors.as_fd()], None).unwrap();
        wait(pid)
    })
    .unwrap();
    drop(writer);
    let mut text = String::new();
    fs::File::from(reader).read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), wait(child.pid)), ("right\n", 0));
    destroy(sandbox);
}
