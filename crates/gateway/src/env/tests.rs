use std::{os::unix::fs::PermissionsExt, process::Command};

use super::*;

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

fn names(bundle: &str) -> Variables {
    let trust = Trust { bundle: bundle.into(), authority: "/s/tls/authority.pem".into() };
    let domain = "pando.localhost:7443".parse().unwrap();
    Variables::new(KEY, &Form::Names { domain, trust: Some(trust) }).unwrap()
}

#[test]
fn names_and_plain_addresses_have_their_variables() {
    let expected = format!(
        "E2B_API_KEY={KEY}\nE2B_DOMAIN=pando.localhost:7443\nSSL_CERT_FILE=/s/b.pem\n\
         NODE_EXTRA_CA_CERTS=/s/tls/authority.pem\nPANDO_URL=https://api.pando.localhost:7443\n\
         PANDO_KEY={KEY}\n"
    );
    assert_eq!(names("/s/b.pem").lines(), expected);
    let public = Form::Names { domain: "box.example.com".parse().unwrap(), trust: None };
    assert_eq!(
        Variables::new(KEY, &public).unwrap().lines(),
        format!(
            "E2B_API_KEY={KEY}\nE2B_DOMAIN=box.example.com\nPANDO_URL=https://api.box.example.com\nPANDO_KEY={KEY}\n"
        )
    );
    for (listens, url) in
        [("0.0.0.0:80", "http://127.0.0.1:80"), ("[::]:80", "http://[::1]:80"), ("10.0.0.1:80", "http://10.0.0.1:80")]
    {
        let plain = Variables::new(KEY, &Form::Plain { address: listens.parse().unwrap() }).unwrap().lines();
        let expected = format!(
            "E2B_API_KEY={KEY}\nE2B_API_URL={url}\nE2B_SANDBOX_URL={url}\nE2B_VOLUME_API_URL={url}\nPANDO_URL={url}\n\
             PANDO_KEY={KEY}\n"
        );
        assert_eq!(plain, expected);
    }
}

#[test]
fn a_shell_gets_the_values_as_they_are() {
    let odd = "/it's $HOME/\"b\" `c`.pem";
    let script = format!("{}printf %s \"$SSL_CERT_FILE\"", names(odd).shell());
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), odd);
}

#[test]
fn line_ends_are_refused() {
    let domain = "pando.localhost".parse().unwrap();
    let trust = Some(Trust { bundle: "/a\nb".into(), authority: "/c".into() });
    let error = Variables::new(KEY, &Form::Names { domain, trust }).err().unwrap().to_string();
    assert!(error.contains("SSL_CERT_FILE has a line end"), "{error}");
}

#[tokio::test]
async fn a_running_server_is_told_from_one_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let told = |found: Result<Variables, Error>| found.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(told(running(dir.path()).await).contains("no server runs with the state directory"));
    let listener = crate::listen::take("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address();
    names("/s/b.pem").leave(dir.path(), address).unwrap();
    let file = dir.path().join(FILE);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(running(dir.path()).await.unwrap().lines(), names("/s/b.pem").lines());
    drop(listener);
    // A child of another test may hold the socket until it is another program.
    while running(dir.path()).await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(told(running(dir.path()).await).contains("does not answer"));
    std::fs::write(&file, format!("{ADDRESS_MARK}{address}\nA=1\nB\n")).unwrap();
    assert!(told(running(dir.path()).await).contains("env:3 is no variable"));
    withdraw(dir.path());
    assert!(told(running(dir.path()).await).contains("no server runs"));
}

#[tokio::test]
async fn names_that_do_not_resolve_give_plain_addresses() {
    let address = "127.0.0.1:7443".parse().unwrap();
    let form = Form::choose(&"pando.invalid".parse().unwrap(), None, address).await;
    assert_eq!(form, Form::Plain { address });
}
