//! An edge to test, programs behind it, and clients.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use futures::StreamExt;
use hyper::{Request, Response, client::conn::http1, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pando_gateway::{
    domain::Domain,
    listen,
    proxy::{Dial, DialError, Proxy, ProxyBounds, Target},
    route::{Route, SandboxLabel},
    serve::{Bounds, Endless, Options, Plain, serve},
    tls::{Authority, Own, Tls},
    token::Secret,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

pub(crate) const ID: &str = "s0123456789ab";
pub(crate) const TOKEN: &str = "let me in";
/// Nothing here takes so long unless it fails.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Sandbox [`ID`] is this machine. There is no other.
#[derive(Debug)]
pub(crate) struct Loopback;

impl Dial for Loopback {
    type Stream = TcpStream;

    async fn dial(&self, id: &SandboxLabel, port: u16) -> Result<TcpStream, DialError> {
        match id.as_str() {
            ID => {}
            "paused" => return Err(DialError::Paused),
            "busy" => return Err(DialError::Busy { retry_after_s: 7 }),
            _ => return Err(DialError::NoSandbox),
        }
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => DialError::PortClosed { port },
            _ => DialError::Failed(error.into()),
        })
    }
}

/// What differs between tests.
pub(crate) struct Wanted {
    pub(crate) listen: &'static str,
    pub(crate) bounds: Bounds,
    pub(crate) proxy: ProxyBounds,
    pub(crate) traffic_token: Option<Secret>,
    pub(crate) mask_request_host: Option<String>,
    pub(crate) own: Option<Own>,
}

impl Default for Wanted {
    fn default() -> Self {
        let bounds = Bounds::default();
        let proxy = ProxyBounds::default();
        Self { listen: "127.0.0.1:0", bounds, proxy, traffic_token: None, mask_request_host: None, own: None }
    }
}

/// A running edge.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    pub(crate) state: TempDir,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

impl Edge {
    pub(crate) async fn start() -> Self {
        Self::with(Wanted::default()).await
    }

    pub(crate) async fn with(wanted: Wanted) -> Self {
        let state = tempfile::tempdir().unwrap();
        let listener = listen::take(wanted.listen.parse().unwrap()).unwrap();
        let address = listener.address();
        let domain: Domain = format!("pando.localhost:{}", address.port()).parse().unwrap();
        let tls = match wanted.own.clone() {
            Some(own) => Tls::own(own),
            None => Tls::local(Authority::open(state.path(), &domain).unwrap()),
        };
        let tls = Some(tls.unwrap());
        let options = Options { domain, tls, plain: Plain::Loopback, bounds: wanted.bounds };
        let (proxy, wanted) = (Proxy::new(Arc::new(Loopback), wanted.proxy), Arc::new(wanted));
        let handler = tower_fn(move |request| answer(proxy.clone(), Arc::clone(&wanted), request));
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(listener, options, handler, async {
            let _ = stopped.await;
        }));
        Self { address, state, stop: Some(stop), served }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn bundle(&self) -> String {
        self.state.path().join("pando.localhost/bundle.pem").display().to_string()
    }

    pub(crate) fn authority(&self) -> String {
        self.state.path().join("pando.localhost/authority.pem").display().to_string()
    }

    /// The host of a port in the sandbox.
    pub(crate) fn host(&self, port: u16) -> String {
        format!("{port}-{ID}.pando.localhost:{}", self.port())
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).await.unwrap()
    }

    /// Sends a request over a new connection of plain HTTP/1.1.
    pub(crate) async fn send(&self, request: Request<Body>) -> Response<hyper::body::Incoming> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect().await)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        timeout(SOON, sender.send_request(request)).await.unwrap().unwrap()
    }

    pub(crate) async fn get(&self, host: &str) -> Response<hyper::body::Incoming> {
        self.send(Request::builder().header("host", host).body(Body::empty()).unwrap()).await
    }

    /// Tells it to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until it has stopped.
    pub(crate) async fn stopped(self) {
        timeout(SOON, self.served).await.unwrap().unwrap();
    }
}

async fn answer(proxy: Proxy<Loopback>, wanted: Arc<Wanted>, request: Request<Body>) -> Response<Body> {
    let route = request.extensions().get::<Route>().expect("a request has a route").clone();
    match route {
        Route::Api => match request.uri().path() {
            "/slow" => {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Response::new(Body::from("slow"))
            }
            "/never" => std::future::pending().await,
            "/events" => {
                let begins = futures::stream::iter([Ok::<_, Infallible>("begins")]);
                let mut response = Response::new(Body::from_stream(begins.chain(futures::stream::pending())));
                response.extensions_mut().insert(Endless);
                response
            }
            _ => Response::new(Body::from(format!("api over {:?}", request.version()))),
        },
        Route::Envd { id } => Response::new(Body::from(format!("envd of {id}"))),
        Route::Port { id, port } => {
            let target = Target {
                id,
                port,
                traffic_token: wanted.traffic_token.clone(),
                mask_request_host: wanted.mask_request_host.clone(),
            };
            proxy.forward(&target, request).await
        }
    }
}

/// A handler of a function, as `tower::service_fn` makes it.
#[derive(Clone)]
struct TowerFn<F>(F);

fn tower_fn<F>(function: F) -> TowerFn<F> {
    TowerFn(function)
}

impl<F, A> tower_service::Service<Request<Body>> for TowerFn<F>
where
    F: Fn(Request<Body>) -> A,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answered = (self.0)(request);
        Box::pin(async move { Ok(answered.await) })
    }
}

/// A program: serves every connection with `handler`, by whichever protocol the client speaks. Gives its port.
pub(crate) async fn program<F, A>(handler: F) -> u16
where
    F: Fn(Request<hyper::body::Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let handler = handler.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answered = handler(request);
                    async move { Ok::<_, std::convert::Infallible>(answered.await) }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    port
}

/// A port that a test serves itself.
pub(crate) async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A TLS connection of a client that trusts only what is in a file.
pub(crate) async fn tls(edge: &Edge, trusted: &str, name: &str) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(name.to_owned()).unwrap();
    timeout(SOON, TlsConnector::from(Arc::new(config)).connect(name, edge.connect().await)).await.unwrap()
}

pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: hyper::body::Body,
    B::Error: std::fmt::Debug,
{
    let body = timeout(SOON, http_body_util::BodyExt::collect(response.into_body())).await.unwrap().unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}
