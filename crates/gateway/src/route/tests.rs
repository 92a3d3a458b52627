use hyper::Request;
use proptest::prelude::*;

use super::*;

const ID: &str = "s0123456789ab";

fn domain() -> Domain {
    "pando.localhost:7443".parse().unwrap()
}

fn by_host(host: &str) -> Result<Route, Unroutable> {
    route(Asked { host: Some(host), ..Asked::default() }, &domain())
}

fn with_headers(host: &str, id: Option<&str>, port: Option<&str>) -> Result<Route, Unroutable> {
    route(Asked { host: Some(host), sandbox_id: id, sandbox_port: port }, &domain())
}

fn id() -> SandboxLabel {
    SandboxLabel::new(ID).unwrap()
}

#[test]
fn names_of_the_domain_decide_whatever_their_case_dot_and_port() {
    for host in ["api.pando.localhost", "API.Pando.LocalHost:1", "api.pando.localhost.:7443", "pando.localhost"] {
        assert_eq!(by_host(host), Ok(Route::Api), "{host}");
    }
    for host in [format!("49983-{ID}.pando.localhost"), format!("49983-{ID}.PANDO.localhost.:7443").to_uppercase()] {
        assert_eq!(by_host(&host), Ok(Route::Envd { id: id() }), "{host}");
    }
    let port = Route::Port { id: id(), port: 8080 };
    assert_eq!(by_host(&format!("8080-{ID}.pando.localhost:7443")), Ok(port));
}

#[test]
fn other_names_go_nowhere() {
    for host in
        ["example.com", "evilpando.localhost", "a.b.pando.localhost", "foo.pando.localhost", "pando.localhost.evil.com"]
    {
        assert!(matches!(by_host(host), Err(Unroutable::UnknownHost { .. })), "{host}: {:?}", by_host(host));
    }
    let long = "a".repeat(100_000);
    let bad =
        ["", ".", "..", ":80", "a b", "a/b", "ä.localhost", "a:8a", "a@localhost", "[::1", "[::1]x", "[::g]", "::1"];
    for host in bad.into_iter().chain(["api..pando.localhost", "api.pando.localhost:999999", &long]) {
        assert_eq!(by_host(host), Err(Unroutable::InvalidHost), "{host:.80}");
    }
}

#[test]
fn ports_are_numbers_from_1_to_65535() {
    for port in ["0", "65536", "x", "+80", "080000", "8 0"] {
        assert_eq!(with_headers("localhost", Some(ID), Some(port)), Err(Unroutable::InvalidPort), "{port}");
    }
    let missing = Err(Unroutable::MissingHeader(SANDBOX_PORT_HEADER));
    assert_eq!(with_headers("localhost", Some(ID), Some("")), missing);
    assert_eq!(with_headers("localhost", Some(ID), None), missing);
    assert_eq!(by_host(&format!("70000-{ID}.pando.localhost")), Err(Unroutable::InvalidPort));
    assert_eq!(by_host("80-_.pando.localhost"), Err(Unroutable::InvalidId));
}

#[test]
fn headers_count_where_the_host_names_no_sandbox() {
    let expected = Route::Port { id: id(), port: 3000 };
    for host in
        ["localhost", "LOCALHOST:80", "127.0.0.1:7443", "10.1.2.3", "[::1]:7443", "[::1]", "sandbox.pando.localhost"]
    {
        assert_eq!(with_headers(host, Some(ID), Some("3000")).as_ref(), Ok(&expected), "{host}");
    }
    assert_eq!(with_headers("localhost", Some(ID), Some("49983")), Ok(Route::Envd { id: id() }));
    for host in ["localhost", "127.0.0.1", "[::1]:1"] {
        assert_eq!(by_host(host), Ok(Route::Api), "{host}");
    }
    assert_eq!(by_host("sandbox.pando.localhost"), Err(Unroutable::MissingHeader(SANDBOX_ID_HEADER)));
    assert_eq!(with_headers("localhost", None, Some("1")), Err(Unroutable::MissingHeader(SANDBOX_ID_HEADER)));
    assert_eq!(with_headers("localhost", Some("../../etc"), Some("1")), Err(Unroutable::InvalidId));
}

#[test]
fn headers_do_not_move_a_request_that_its_host_places() {
    let other = Some("s999999999999");
    assert_eq!(with_headers("api.pando.localhost", other, Some("80")), Ok(Route::Api));
    let expected = Route::Port { id: id(), port: 80 };
    assert_eq!(with_headers(&format!("80-{ID}.pando.localhost"), other, Some("81")), Ok(expected));
    assert!(with_headers("example.com", Some(ID), Some("80")).is_err());
}

#[test]
fn the_target_counts_before_the_header_and_both_before_the_handshake() {
    let parts = |uri: &str, hosts: &[&str]| {
        let request = hosts.iter().fold(Request::builder().uri(uri), |request, host| request.header("host", *host));
        request.body(()).unwrap().into_parts().0
    };
    let host = |parts: &Parts, name| Asked::of(parts, name).map(|asked| asked.host.map(str::to_owned));
    assert_eq!(host(&parts("http://a.b/", &["c.d"]), Some("e.f")), Ok(Some("a.b".to_owned())));
    assert_eq!(host(&parts("/", &["c.d"]), Some("e.f")), Ok(Some("c.d".to_owned())));
    assert_eq!(host(&parts("/", &[]), Some("e.f")), Ok(Some("e.f".to_owned())));
    assert_eq!(host(&parts("/", &[]), None), Ok(None));
    assert_eq!(host(&parts("/", &["a.b", "c.d"]), None), Err(Unroutable::InvalidHost));
}

proptest! {
    #[test]
    fn no_text_panics_and_every_route_is_well_formed(
        host in "[\\PC.:\\[\\]-]{0,80}",
        id in proptest::option::of("\\PC{0,70}"),
        port in proptest::option::of("[0-9a-z+]{0,7}"),
    ) {
        for host in [host.clone(), format!("{host}.pando.localhost"), "localhost".to_owned()] {
            let asked = Asked { host: Some(&host), sandbox_id: id.as_deref(), sandbox_port: port.as_deref() };
            match route(asked, &domain()) {
                Ok(Route::Port { id, port }) => prop_assert!(port != 0 && port != ENVD_PORT && is_label(id.as_str())),
                Ok(Route::Envd { id }) => prop_assert!(is_label(id.as_str())),
                Ok(Route::Api) | Err(_) => {}
            }
        }
    }
}
