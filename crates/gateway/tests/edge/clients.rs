//! Clients that are not ours: they must accept the certificates and speak both protocols.

use std::process::{Output, Stdio};

use tokio::process::Command;

use crate::support::{Edge, ID, text};

async fn run(command: &mut Command) -> Output {
    // Nothing of the caller's own trust.
    for name in ["SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "https_proxy", "HTTPS_PROXY"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap()
}

fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Names of the domain, of this machine, and its addresses.
fn urls(edge: &Edge) -> [String; 4] {
    let port = edge.port();
    [
        format!("https://api.pando.localhost:{port}/"),
        format!("https://pando.localhost:{port}/"),
        format!("https://localhost:{port}/"),
        format!("https://127.0.0.1:{port}/"),
    ]
}

#[tokio::test]
async fn curl_trusts_the_bundle_over_both_protocols() {
    let edge = Edge::start().await;
    for url in urls(&edge) {
        for (flag, expected) in [("--http1.1", "api over HTTP/1.1"), ("--http2", "api over HTTP/2.0")] {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--noproxy", "*", "--max-time", "10", flag, "--cacert", &edge.bundle(), &url]);
            assert_eq!(stdout(&run(&mut curl).await), expected, "{url}");
        }
    }
    let port = edge.port();
    let mut plain = Command::new("curl");
    plain.args(["-sS", "--noproxy", "*", "--http2-prior-knowledge", &format!("http://127.0.0.1:{port}/")]);
    assert_eq!(stdout(&run(&mut plain).await), "api over HTTP/2.0");
    let mut stranger = Command::new("curl");
    stranger.args(["-sS", "--noproxy", "*", &urls(&edge)[0]]);
    assert_eq!(run(&mut stranger).await.status.code(), Some(60), "curl without the bundle must refuse");
}

const PYTHON: &str = r#"
import socket, ssl, sys
port, name = int(sys.argv[1]), sys.argv[2]
# SSL_CERT_FILE is read by this, as by every HTTP library of Python.
context = ssl.create_default_context()
with socket.create_connection(("127.0.0.1", port)) as tcp:
    with context.wrap_socket(tcp, server_hostname=name) as tls:
        tls.sendall(f"GET / HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n".encode())
        answer = b""
        while part := tls.recv(65536):
            answer += part
print(answer.split(b"\r\n\r\n")[1].decode())
"#;

#[tokio::test]
async fn python_trusts_the_bundle() {
    let edge = Edge::start().await;
    let sandbox = format!("49983-{ID}.pando.localhost");
    for (name, expected) in [("api.pando.localhost", "api over HTTP/1.1"), (&sandbox, &format!("envd of {ID}"))] {
        let mut python = Command::new("python3");
        python.args(["-c", PYTHON, &edge.port().to_string(), name]).env_clear();
        python.env("PATH", std::env::var_os("PATH").unwrap()).env("SSL_CERT_FILE", edge.bundle());
        let output = python.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
        assert_eq!(stdout(&output).trim(), expected);
    }
}

const NODE: &str = r#"
const [port, name] = process.argv.slice(1);
// The names need not resolve on the machine of the test.
const lookup = (_, options, done) => options.all ? done(null, [{address: '127.0.0.1', family: 4}]) : done(null, '127.0.0.1', 4);
require('https').get({host: name, port, lookup}, answer => {
  answer.setEncoding('utf8');
  answer.on('data', text => process.stdout.write(text));
}).on('error', error => { console.error(error); process.exit(1); });
"#;

#[tokio::test]
async fn node_trusts_the_authority() {
    let edge = Edge::start().await;
    if Command::new("node").arg("--version").output().await.is_err() {
        #[expect(clippy::print_stderr, reason = "a reader must see that this was not tested")]
        {
            eprintln!("skipped: node is not installed; `make setup` installs it");
        }
        return;
    }
    let sandbox = format!("49983-{ID}.pando.localhost");
    for (name, expected) in [("api.pando.localhost", "api over HTTP/1.1"), (&sandbox, &format!("envd of {ID}"))] {
        let mut node = Command::new("node");
        node.args(["-e", NODE, &edge.port().to_string(), name]);
        node.env("NODE_EXTRA_CA_CERTS", edge.authority());
        let output = node.env_remove("SSL_CERT_FILE").stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
        assert_eq!(stdout(&output), expected);
    }
}

#[tokio::test]
async fn headers_and_hosts_lead_to_the_same_sandbox() {
    let edge = Edge::start().await;
    assert_eq!(text(edge.get(&format!("49983-{ID}.pando.localhost")).await).await, format!("envd of {ID}"));
    let request = hyper::Request::builder()
        .header("host", format!("127.0.0.1:{}", edge.port()))
        .header("E2b-Sandbox-Id", ID)
        .header("E2b-Sandbox-Port", "49983")
        .body(axum::body::Body::empty())
        .unwrap();
    assert_eq!(text(edge.send(request).await).await, format!("envd of {ID}"));
    let elsewhere = edge.get("example.com").await;
    assert_eq!(elsewhere.status(), 400);
    assert!(text(elsewhere).await.contains("Unknown host example.com"));
}
