use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

fn domain(text: &str) -> Domain {
    text.parse().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_authority_is_made_once_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let first = Authority::open(dir.path(), &domain("pando.localhost:1")).unwrap();
    let again = Authority::open(dir.path(), &domain("pando.localhost:2")).unwrap();
    assert_eq!(first.authority.certificate(), again.authority.certificate());
    assert_eq!(mode(&dir.path().join("pando.localhost/authority.key")), 0o600);
    assert_eq!((mode(&again.certificate_file()), mode(&again.bundle_file())), (0o644, 0o644));
    let other = Authority::open(dir.path(), &domain("box.example.com")).unwrap();
    assert_ne!(first.authority.certificate(), other.authority.certificate());
}

#[test]
fn a_certificate_is_made_again_of_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let first = Authority::open(dir.path(), &domain("a.localhost")).unwrap();
    fs::remove_file(first.certificate_file()).unwrap();
    let again = Authority::open(dir.path(), &domain("a.localhost")).unwrap();
    // A client that trusts the earlier file trusts what the new one signs.
    again.check_by(first.authority.certificate()).unwrap();
}

#[test]
fn files_that_do_not_belong_together_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let a = Authority::open(dir.path(), &domain("a.localhost")).unwrap();
    let b = Authority::open(dir.path(), &domain("b.localhost")).unwrap();
    fs::copy(b.certificate_file(), a.certificate_file()).unwrap();
    let error = Authority::open(dir.path(), &domain("a.localhost")).unwrap_err().to_string();
    assert!(error.contains("a.localhost/authority.pem is not usable") && error.contains("remove its"), "{error}");
    fs::write(dir.path().join("a.localhost/authority.key"), "none").unwrap();
    let error = Authority::open(dir.path(), &domain("a.localhost")).unwrap_err().to_string();
    assert!(error.contains("authority.key is not usable"), "{error}");
}

/// Names outside the domain, signed by the same key.
#[test]
fn a_stolen_key_cannot_impersonate_other_sites() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path(), &domain("a.localhost")).unwrap();
    let forged = Authority { domain: domain("bank.example"), ..authority };
    let refused = forged.check().unwrap_err();
    assert!(refused.to_lowercase().contains("constraint"), "{refused}");
}
