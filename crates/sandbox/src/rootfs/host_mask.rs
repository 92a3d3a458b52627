//! The layer that makes the node's own root fit for a sandbox: what belongs to the host or to its users is hidden.
//!
//! Only the root filesystem itself is a layer: an overlay does not follow mounts, so whatever the host has mounted
//! elsewhere (volumes, /proc, /sys, tmpfs) is not there anyway.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use super::{
    base_layer::write_base,
    layer::{Access, Layer},
};
use crate::{
    error::{Context, Error},
    spec::PROGRAM_ID,
};

/// Secrets and machinery of the host: directories become empty ones, files disappear, and what comes to exist later does not appear.
#[rustfmt::skip]
const HIDDEN: &[&str] = &[
    // People and foreign filesystems.
    "/root", "/mnt", "/media", "/srv", "/lost+found", "/boot", "/.dockerenv",
    // Accounts, keys and tokens.
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/passwd-", "/etc/group-", "/etc/subuid-",
    "/etc/subgid-", "/etc/sudoers", "/etc/sudoers.d", "/etc/doas.conf", "/etc/security/opasswd", "/etc/krb5.keytab",
    "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt", "/etc/cloud", "/etc/machine-id",
    "/etc/NetworkManager/system-connections", "/etc/wpa_supplicant", "/etc/wireguard", "/etc/openvpn", "/etc/ipsec.secrets",
    "/etc/ipsec.d", "/etc/ppp", "/etc/docker", "/etc/containerd", "/etc/containers/auth.json", "/etc/kubernetes",
    "/etc/rancher", "/etc/cni", "/etc/pando", "/etc/credstore", "/etc/credstore.encrypted", "/etc/cron.d", "/etc/crontab",
    "/etc/google", "/etc/boto.cfg", "/etc/aws", "/etc/azure", "/etc/vault.d", "/etc/consul.d", "/etc/nomad.d",
    // State of services.
    "/var/log", "/var/spool", "/var/mail", "/var/backups", "/var/crash", "/var/lib/private", "/var/lib/docker",
    "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/etcd", "/var/lib/rancher",
    "/var/lib/lxc", "/var/lib/lxd", "/var/lib/libvirt", "/var/lib/machines", "/var/lib/systemd", "/var/lib/cloud",
    "/var/lib/sss", "/var/lib/NetworkManager", "/var/lib/dhcp", "/var/lib/postgresql", "/var/lib/mysql", "/var/lib/redis",
    "/var/lib/mongodb", "/var/lib/waagent", "/var/lib/amazon", "/var/lib/google", "/var/lib/sudo", "/var/lib/pando",
    "/opt/containerd", "/var/run", "/var/lock", "/var/snap", "/snap",
];

/// Makes `layer` the layer above `/` for image `host`; hides the paths in `hide` as well, which need not exist (yet).
/// Repeating it is harmless and takes up what is new on the host.
pub fn prepare_host_mask(layer: &Path, hide: &[PathBuf]) -> Result<(), Error> {
    let layer = Layer::open(layer)?;
    mirror_parents(&layer, Path::new("/var/tmp"))?;
    write_base(&layer)?;
    for path in HIDDEN {
        hide_path(&layer, Path::new(path))?;
    }
    for path in hide {
        match fs::canonicalize(path) {
            Ok(path) => hide_path(&layer, &path)?,
            Err(_) => hide_future(&layer, path)?,
        }
    }
    write_accounts(&layer)
}

fn hide_path(layer: &Layer, path: &Path) -> Result<(), Error> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return hide_absent(layer, path),
        found => found.at("look at", path)?,
    };
    // A link leads to a place that is hidden by its own name, or that is meant to be seen.
    if layer.covers(path) || found.is_symlink() {
        return Ok(());
    }
    mirror_parents(layer, path)?;
    let inside = text(path)?;
    if found.is_dir() { layer.opaque(inside, Access::from(&found)) } else { layer.whiteout(inside) }
}

/// Hides what may come to exist while the node runs.
fn hide_absent(layer: &Layer, path: &Path) -> Result<(), Error> {
    // What the base has there counts, whatever the host puts below it.
    if layer.covers(path) || layer.has(text(path)?) || !path.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    mirror_parents(layer, path)?;
    layer.whiteout(text(path)?)
}

/// Hides a directory that will come to exist.
fn hide_future(layer: &Layer, path: &Path) -> Result<(), Error> {
    if layer.covers(path) {
        return Ok(());
    }
    mirror_parents(layer, path)?;
    layer.opaque(text(path)?, Access::root(0o700))
}

/// Makes the directories above `path`, with owner and mode as on the host: the topmost layer's are those that count.
fn mirror_parents(layer: &Layer, path: &Path) -> Result<(), Error> {
    let mut parent = PathBuf::from("/");
    let names: Vec<_> = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    for name in names.iter().take(names.len().saturating_sub(1)) {
        parent.push(name);
        let access = fs::metadata(&parent).map_or(Access::root(0o755), |found| Access::from(&found));
        layer.directory(text(&parent)?, access)?;
    }
    Ok(())
}

/// The host's accounts (without passwords, which are in /etc/shadow) with the program's user under its own name.
fn write_accounts(layer: &Layer) -> Result<(), Error> {
    let id = PROGRAM_ID.to_string();
    for (file, own) in
        [("/etc/passwd", format!("user:x:{id}:{id}::/home/user:/bin/sh\n")), ("/etc/group", format!("user:x:{id}:\n"))]
    {
        let host = fs::read_to_string(file).unwrap_or_default();
        let other = |line: &&str| line.split(':').nth(2) != Some(&id) && !line.starts_with("user:");
        let mut content: String = host.lines().filter(other).flat_map(|line| [line, "\n"]).collect();
        content.push_str(&own);
        layer.file(file, content.as_bytes())?;
    }
    Ok(())
}

fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename)).at("hide", path)
}
