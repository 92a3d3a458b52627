//! `make install` below a directory: what is placed, replaced and removed. Nothing is started.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output},
};

const PANDO: &str = env!("CARGO_BIN_EXE_pando");
const SETTINGS: &str = "etc/pando/serve.env";

fn script(dest: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> io::Result<Output> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new(path);
    command.args(arguments).env("DESTDIR", dest).envs(variables.iter().copied());
    let output = command.output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Every file and link below a directory, without it.
fn files(dest: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![dest.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.symlink_metadata()?.is_dir() {
                open.push(path);
            } else if let Ok(below) = path.strip_prefix(dest) {
                found.push(below.display().to_string());
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[test]
fn an_upgrade_replaces_files_and_keeps_settings() {
    let dest = tempfile::tempdir().unwrap();
    let dest = dest.path();
    let variables = [("PREFIX", "/opt/pando"), ("BASE", "none")];
    script(dest, &["install", PANDO], &variables).unwrap();
    let placed = files(dest).unwrap();
    let expected = [
        SETTINGS,
        "etc/systemd/system/pando.service",
        "opt/pando/bin/pando",
        "opt/pando/share/bash-completion/completions/pando",
        "opt/pando/share/fish/vendor_completions.d/pando.fish",
        "opt/pando/share/zsh/site-functions/_pando",
        "sbin/mount.fuse.pando",
        "sbin/mount.pando",
    ];
    assert_eq!(placed, expected);
    let unit = fs::read_to_string(dest.join("etc/systemd/system/pando.service")).unwrap();
    assert!(unit.contains("\nExecStart=/opt/pando/bin/pando serve $PANDO_OPTIONS\n"), "{unit}");
    assert_eq!(fs::read_link(dest.join("sbin/mount.pando")).unwrap(), Path::new("/opt/pando/bin/pando"));
    let settings = dest.join(SETTINGS);
    assert_eq!(settings.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    fs::write(&settings, "PANDO_BASE=/srv/own\nPANDO_OPTIONS=--pool 2\n").unwrap();
    let binary = dest.join("opt/pando/bin/pando");
    let (mut running, before) = (fs::File::open(&binary).unwrap(), binary.metadata().unwrap().ino());
    script(dest, &["install", PANDO], &variables).unwrap();
    assert_ne!(binary.metadata().unwrap().ino(), before, "the file that runs is not written to");
    let mut magic = [0; 4];
    running.read_exact(&mut magic).unwrap();
    assert_eq!(&magic, b"\x7fELF");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "PANDO_BASE=/srv/own\nPANDO_OPTIONS=--pool 2\n");
    assert_eq!(files(dest).unwrap(), expected, "nothing half-written stays");
}

#[test]
fn an_uninstall_keeps_state_unless_purged() {
    let dest = tempfile::tempdir().unwrap();
    let dest = dest.path();
    script(dest, &["install", PANDO], &[("BASE", "none")]).unwrap();
    let state = dest.join("var/lib/pando/store");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("master.keys"), "key").unwrap();
    let output = script(dest, &["uninstall"], &[]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("These stay") && said.contains("PURGE=1"), "{said}");
    assert_eq!(files(dest).unwrap(), [SETTINGS, "var/lib/pando/store/master.keys"]);
    script(dest, &["install", PANDO], &[("BASE", "none")]).unwrap();
    script(dest, &["uninstall"], &[("PURGE", "1")]).unwrap();
    assert_eq!(files(dest).unwrap(), [] as [&str; 0]);
}

#[test]
fn the_base_image_is_the_one_that_was_named_last() {
    let dest = tempfile::tempdir().unwrap();
    let dest = dest.path();
    let line = |base: &str| -> String {
        script(dest, &["install", PANDO], &[("BASE", base)]).unwrap();
        let text = fs::read_to_string(dest.join(SETTINGS)).unwrap();
        text.lines().find(|line| line.contains("PANDO_BASE=")).unwrap().to_owned()
    };
    assert!(line("none").starts_with("#PANDO_BASE="));
    assert_eq!(line("/var/cache/pando/base-1/root"), "PANDO_BASE=/var/cache/pando/base-1/root");
    assert_eq!(line("none"), "PANDO_BASE=/var/cache/pando/base-1/root");
    assert_eq!(line("/srv/own"), "PANDO_BASE=/srv/own");
}

#[test]
fn the_unit_is_one_that_systemd_reads() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else { return };
    let dest = tempfile::tempdir().unwrap();
    // systemd-analyze looks for the program that the unit names.
    let unit = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/pando.service");
    let text = fs::read_to_string(unit).unwrap().replace("/usr/local/bin/pando", "/bin/true");
    let path = dest.path().join("pando.service");
    fs::write(&path, text).unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let number = String::from_utf8_lossy(&version.stdout);
    let number: u32 = number.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap();
    // systemd 254 brought it.
    let known = |line: &&str| number >= 254 || !line.contains("'DelegateSubgroup'");
    let wrong: Vec<&str> = said.lines().filter(|line| line.contains("pando.service")).filter(known).collect();
    assert!(output.status.success() && wrong.is_empty(), "{said}");
}
