//! What `pando serve` adds to a node: a TCP port for E2B's clients, and the control plane behind it.
//!
//! ```text
//! port taken -> (node ready) -> database, key, certificates, templates -> sandboxes in line -> variables -> requests
//! ```

use std::{
    collections::HashSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::error::chain;
use control::{Control, SystemClock};
use gateway::{
    domain::Domain,
    env::{Form, Trust, Variables, withdraw},
    listen::{Listeners, take},
    proxy::ProxyBounds,
    serve::{Bounds, Options, Plain, serve},
    tls::{Authority, Own, Tls},
};
use node::{Error, Node, Result};

use crate::{
    e2b::{self, Described, Platform},
    key::local_key,
};

/// How clients reach the server.
#[derive(Debug)]
pub struct Public {
    /// Where it listens. Port 0: any.
    pub listen: SocketAddr,
    /// Names below it are the server's.
    pub domain: Domain,
    /// The certificate of the domain; none: the local authority makes one.
    pub certificate: Option<Own>,
    /// Who may speak plain HTTP.
    pub plain: Plain,
    /// The root filesystem of the template `base`; none: the server has no templates of its own.
    pub base: Option<PathBuf>,
    /// Gets the variables that SDKs need, as soon as requests are taken.
    pub env_file: Option<PathBuf>,
}

/// The port is taken; nothing is served yet.
pub(crate) struct Taken {
    public: Public,
    listeners: Listeners,
    address: SocketAddr,
}

fn failed(message: impl std::fmt::Display) -> Error {
    Error::Invalid { message: message.to_string(), hint: None }
}

impl Taken {
    /// Takes the port: what cannot be had is said before anything is started.
    pub(crate) fn new(public: Public) -> Result<Self> {
        let listeners = take(public.listen).map_err(|error| failed(chain(&error)))?;
        let address = listeners.address();
        Ok(Self { public, listeners, address })
    }

    /// Serves until `stop` resolves.
    pub(crate) async fn serve(self, node: Arc<Node>, stop: impl Future<Output = ()>) -> Result<()> {
        let Self { public, listeners, address } = self;
        let (state_dir, settings) = (node.config().state_dir.clone(), &node.config().durable);
        let (clock, id) = (Arc::new(SystemClock), node.info().id);
        let control = match &settings.database {
            Some(url) => Control::open(url, &id, clock).await,
            None => Control::open_file(&state_dir.join("control.db"), &id, clock).await,
        };
        let control = control.map_err(|error| failed(chain(&error)))?;
        let key = local_key(&control, &state_dir).await?;
        let domain = public.domain.with_port(public.domain.port().unwrap_or(address.port()));
        let (tls, trust) = certificates(&public, &domain, &state_dir)?;
        let form = Form::choose(&domain, trust, address).await;
        match &public.base {
            Some(image) => crate::base::offer(&node, image).await?,
            None => tracing::warn!("no --base is given: clients find no template `base`"),
        }
        let warm = Arc::clone(&node).keep_warm();
        let descriptors = usize::try_from(keeper::descriptor::limit()).unwrap_or(usize::MAX);
        // A stream of a command's output has a descriptor beside that of its client.
        let services = ProxyBounds::within(descriptors / 2);
        let platform = Arc::new(Platform::new(node, control.clone(), domain.clone(), services));
        platform.catch_up().await.map_err(|error| failed(chain(&error)))?;
        platform.sweep_volumes().await;
        platform.sweep_snapshots().await;
        platform.fail_unfinished_builds().await;
        platform.note_built_now(&mut HashSet::new()).await;
        let scheduler = control.scheduler(Arc::new(e2b::OnNode(Arc::clone(&platform))));
        let variables = Variables::new(&key, &form).map_err(|error| failed(chain(&error)))?;
        variables.leave(&state_dir, address).map_err(|error| failed(chain(&error)))?;
        if let Some(file) = &public.env_file {
            variables.write(file).map_err(|error| failed(chain(&error)))?;
        }
        tracing::info!(%address, %domain, "ready for clients; `pando env` prints what they need");
        let described = Described::new().map_err(failed)?;
        let options = Options { domain, tls: Some(tls), plain: public.plain, bounds: Bounds::within(descriptors) };
        let [sampled, paused, unused, built] = std::array::from_fn(|_| Arc::clone(&platform));
        let handler = e2b::handler(platform, ProxyBounds::within(descriptors), described);
        tokio::select! {
            () = serve(listeners, options, handler, stop) => {}
            () = scheduler.run() => {}
            () = sampled.sample() => {}
            () = paused.note_pauses() => {}
            () = unused.drop_unused() => {}
            () = built.note_built() => {}
            () = warm => {}
        }
        withdraw(&state_dir);
        control.close().await;
        Ok(())
    }
}

fn certificates(public: &Public, domain: &Domain, state_dir: &Path) -> Result<(Tls, Option<Trust>)> {
    let made = match public.certificate.clone() {
        Some(own) => Tls::own(own).map(|tls| (tls, None)),
        None => Authority::open(&state_dir.join("tls"), domain).and_then(|authority| {
            let trust = Trust::from(&authority);
            Ok((Tls::local(authority)?, Some(trust)))
        }),
    };
    made.map_err(|error| failed(chain(&error)))
}
