//! One node: its processes of volumes, a store in a directory, and mounts.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, StatusCode};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, UnmountFlags, move_mount, unmount},
    process::{Pid, Signal, kill_process, test_kill_process},
};
use serde::{Serialize, de::DeserializeOwned};
use store::{
    Store,
    heads::Heads,
    keys::{MasterKeys, RealmKeys},
    object::{FaultInjector, FaultPlan, Objects, RequestOptions},
};
use tokio::runtime::{Handle, Runtime};
use volumed::{Access, Attach, BoxError, Client, Config, OpenStore, Options, Role};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) directory: Arc<tempfile::TempDir>,
    options: [u64; 3],
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
    /// Of its processes.
    pub(crate) folder: PathBuf,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What the processes are to do: milliseconds between commits, until an idle volume is closed, until they end.
pub(crate) const FAST: [u64; 3] = [200, 300, 60_000];

impl Node {
    pub(crate) fn new(options: [u64; 3]) -> Result<Self> {
        Self::at(Arc::new(tempfile::tempdir()?), "one", options)
    }

    /// Another node with the same store.
    pub(crate) fn neighbour(&self, name: &str) -> Result<Self> {
        Self::at(self.directory.clone(), name, self.options)
    }

    fn at(directory: Arc<tempfile::TempDir>, name: &str, options: [u64; 3]) -> Result<Self> {
        let folder = directory.path().join(name);
        let client = client_at(&folder, options)?;
        Ok(Self { directory, options, client, runtime: Runtime::new()?, folder })
    }

    pub(crate) fn away(&self) -> PathBuf {
        self.directory.path().join("away")
    }

    /// The worker dies at the place that this file names, `NAME:PASS`, and removes it before.
    pub(crate) fn to_die(&self) -> PathBuf {
        self.directory.path().join("to-die")
    }

    pub(crate) fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<Answer> {
        self.send_with(method, path, body, &[])
    }

    pub(crate) fn send_with(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        headers: &[(&str, &str)],
    ) -> Result<Answer> {
        let mut request = Request::builder().method(method).uri(format!("/v1{path}")).header("host", "node");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into()))?;
        self.runtime.block_on(async {
            let response = self.client.forward(request).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Answer { status: parts.status, headers: parts.headers, body })
        })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.send(Method::GET, path, "")?.parsed()
    }

    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let json = [("content-type", "application/json")];
        self.send_with(Method::POST, path, serde_json::to_vec(body)?, &json)?.parsed()
    }

    pub(crate) fn create(&self, name: &str) -> Result<api::volume::Volume> {
        self.post("/volumes", &serde_json::json!({ "name": name }))
    }

    pub(crate) fn attach(&self, volume: &str, holder: &str, access: Access) -> Result<OwnedFd> {
        let attach = Attach { volume: volume.parse()?, snapshot: None, holder: holder.to_owned(), access };
        Ok(self.runtime.block_on(self.client.attach(attach))?)
    }

    /// The volume, mounted and held.
    pub(crate) fn mount(&self, volume: &str) -> Result<Mounted<'_>> {
        let path = self.directory.path().join("mounts").join(volume);
        fs::create_dir_all(&path)?;
        let holder = format!("host:{}", path.display());
        let tree = self.attach(volume, &holder, Access::ReadWrite)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", CWD, &path, flags).context("move_mount")?;
        Ok(Mounted { node: self, path, holder })
    }

    /// The process with this role, if it lives.
    pub(crate) fn process(&self, roles: &[&str]) -> Option<Pid> {
        let folder = self.folder.to_str()?;
        let is_it = |pid: &str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&str> = std::str::from_utf8(&line).unwrap_or_default().split('\0').collect();
            words.contains(&folder) && words.iter().any(|word| roles.contains(word))
        };
        let entries = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let found = entries.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).find(|pid| is_it(pid))?;
        Pid::from_raw(found.parse().ok()?)
    }

    pub(crate) fn worker(&self) -> Option<Pid> {
        self.process(&["worker"])
    }

    pub(crate) fn guardian(&self) -> Option<Pid> {
        self.process(&["guardian", "heir"])
    }

    pub(crate) fn open_volumes(&self) -> Result<Vec<String>> {
        let volumes: Vec<api::volume::Volume> = self.get("/volumes")?;
        Ok(volumes.into_iter().filter(|volume| volume.open.is_some()).map(|volume| volume.name.to_string()).collect())
    }

    pub(crate) fn wait_ended(&self) -> Result<()> {
        wait_until("both processes end", || Ok(self.worker().is_none() && self.guardian().is_none()))
    }

    /// Ends the processes, as a server does.
    pub(crate) fn finish(&self) -> Result<()> {
        self.runtime.block_on(self.client.shutdown())?;
        self.wait_ended()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Only if a case failed.
        for pid in [self.guardian(), self.worker(), self.guardian(), self.worker()].into_iter().flatten() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Answer {
    pub(crate) fn parsed<T: DeserializeOwned>(&self) -> Result<T> {
        ensure!(self.status.is_success(), "{}: {}", self.status, String::from_utf8_lossy(&self.body));
        Ok(serde_json::from_slice(&self.body)?)
    }
}

pub(crate) struct Mounted<'n> {
    node: &'n Node,
    pub(crate) path: PathBuf,
    holder: String,
}

impl Mounted<'_> {
    pub(crate) fn leave(self) -> Result<()> {
        let (node, holder) = (self.node, self.holder.clone());
        drop(self);
        Ok(node.runtime.block_on(node.client.detach(&holder))?)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

pub(crate) fn kill(pid: Pid) -> Result<()> {
    kill_process(pid, Signal::KILL)?;
    wait_until("it is dead", || Ok(!is_alive(pid)))
}

pub(crate) fn is_alive(pid: Pid) -> bool {
    test_kill_process(pid).is_ok() && !is_zombie(pid)
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('Z'))
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done()? {
        if Instant::now() > deadline {
            bail!("waited in vain until {what}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn client_at(folder: &Path, options: [u64; 3]) -> Result<Client> {
    let words = [
        std::env::current_exe()?.display().to_string(),
        "family".to_owned(),
        folder.display().to_string(),
        options.map(|number| number.to_string()).join(","),
        "guardian".to_owned(),
    ];
    Ok(Client::new(folder.to_owned(), words.to_vec(), None))
}

/// The body of this program as guardian or worker.
pub(crate) fn be_one_of_the_family(folder: &str, options: &str, role: &str) -> Result<()> {
    if std::env::var_os("PANDO_TEST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_writer(std::io::stderr)
            .init();
    }
    let numbers: Vec<u64> = options.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let [commit_pause, idle_close, idle_exit] =
        <[u64; 3]>::try_from(numbers).map_err(|_| anyhow::anyhow!("three numbers"))?.map(Duration::from_millis);
    let arguments = ["family", folder, options].map(Into::into).to_vec();
    let options = Options { commit_pause, idle_close, idle_exit };
    let directory = Path::new(folder).parent().context("no parent")?.to_owned();
    let config = Config { folder: folder.into(), arguments, options };
    let role: Role = role.parse().map_err(anyhow::Error::msg)?;
    Ok(volumed::run(role, config, &Opener { directory })?)
}

struct Opener {
    directory: PathBuf,
}

impl OpenStore for Opener {
    fn open(&self, runtime: &Handle) -> Result<(Heads, Store), BoxError> {
        let [away, to_die] = ["away", "to-die"].map(|name| self.directory.join(name));
        if away.exists() {
            return Err("the store is away".into());
        }
        let heads = runtime.block_on(Heads::open_file(&self.directory.join("heads.db")))?;
        let faults = Arc::new(FaultInjector::new(1, FaultPlan::default()));
        let options = RequestOptions { attempts: 1, ..RequestOptions::default() };
        let objects = self.directory.join("objects").display().to_string().parse()?;
        let objects = Objects::open_faulty(&objects, options, faults.clone())?;
        let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "a test")?;
        let keys = RealmKeys::new(objects.clone(), Arc::new(master), "test".parse()?);
        thread::spawn(move || {
            loop {
                if let Ok(place) = fs::read_to_string(&to_die) {
                    volume::crash_at(&place);
                    let _ = fs::remove_file(&to_die);
                }
                faults.follow(FaultPlan { outage: away.exists(), ..FaultPlan::default() });
                thread::sleep(Duration::from_millis(5));
            }
        });
        Ok((heads, Store::new(objects, keys, None, None)))
    }
}
