//! Whether a host can give sandboxes networks, found by trying.

use std::path::Path;

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    thread::UnshareFlags,
};

use crate::{
    error::{Context, Error},
    netlink::Sockets,
    nft,
    router::{Network, aside},
    settings::Settings,
};

/// Makes a router and connects a sandbox with it, all in namespaces that end with this. `place` is a file that is not there, in a directory that is.
pub fn probe(place: &Path) -> Result<(), Error> {
    const ACTION: &str = "try networks in namespaces of their own";
    aside(|| {
        sys::namespace::unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS).doing(ACTION)?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).doing(ACTION)?;
        let network = Network::open(place, "probe", &Settings::default())?;
        let inside = aside(|| {
            sys::namespace::unshare(UnshareFlags::NEWNET)?;
            Sockets::open()
        });
        let inside = inside.doing(ACTION)?;
        let connected = network.attach(&base::id::SandboxId::random(), &inside);
        network.close(false);
        connected
    })
}

/// Chains of others, as `TABLE CHAIN`, that drop forwarded packets unless a rule of theirs accepts them: those of sandboxes, too.
pub fn closed_forwarding() -> Result<Vec<String>, Error> {
    let sockets = Sockets::open().doing("talk to the kernel about networks")?;
    nft::closed_forwarding(&sockets).doing("read the host's rules")
}
