//! A certificate of the user's own, replaced while the server runs.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use pando_gateway::tls::Own;
use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Signal, getpid, kill_process};

use crate::support::{Edge, SOON, Wanted, tls};

const NAME: &str = "api.box.example.com";

/// Writes a new certificate, and a copy of it that clients may trust.
fn renew(own: &Own, trusted: &Path) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(&own.key, key.serialize_pem()).unwrap();
    fs::write(&own.certificate, certificate.pem()).unwrap();
    fs::write(trusted, certificate.pem()).unwrap();
}

#[tokio::test]
async fn a_certificate_is_replaced_on_sighup_without_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let own = Own { certificate: dir.path().join("own.pem"), key: dir.path().join("own.key") };
    let [first, second] = ["first.pem", "second.pem"].map(|name| dir.path().join(name));
    renew(&own, &first);
    let edge = Edge::with(Wanted { own: Some(own.clone()), ..Wanted::default() }).await;
    let [first, second] = [first, second].map(|path| path.display().to_string());
    // The server handles the signal from its first connection on.
    tls(&edge, &first, NAME).await.unwrap();
    renew(&own, Path::new(&second));
    tls(&edge, &first, NAME).await.expect("the files alone change nothing at once");
    kill_process(getpid(), Signal::HUP).unwrap();
    let begun = Instant::now();
    while tls(&edge, &second, NAME).await.is_err() {
        assert!(begun.elapsed() < SOON / 2, "the new certificate is not served");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(tls(&edge, &first, NAME).await.is_err(), "the earlier certificate is still served");
}
