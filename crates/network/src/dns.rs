//! DNS for sandboxes: queries come in at the router's address, and the node asks its own servers, or those that a sandbox's policy names.
//!
//! A sandbox that reaches domains alone gets answers about these alone: a question about another name could carry something out.
//!
//! The source of a query tells whose it is: a sandbox cannot send with another one's. Answers are passed on as they are. A name that points to what
//! a sandbox may not reach does not help it: its packets are judged by their addresses.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType},
};
use model::DomainName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};

use crate::{
    error::{Context, Error},
    policy::Reach,
    router::Network,
    settings::GATEWAY,
};

const PORT: u16 = 53;
/// Queries of a sandbox, and its TCP connections, that are worked on at a time. More are dropped, as a busy server does.
pub const QUERIES_MAX: usize = 64;
/// The same, of all sandboxes together.
const ALL_MAX: usize = 2_048;
/// How long one server may take, and all.
const SERVER_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// How long a TCP connection of a sandbox may be idle.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Longest message: its length has 16 bits.
const MESSAGE_BYTES_MAX: usize = 65_535;
/// Where the host's own servers are listed (resolv.conf(5)).
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The sockets at the router's address.
struct Doors {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// A server of one node's sandboxes.
pub struct Dns {
    network: Arc<Network>,
    /// Empty: those of the host, as they are listed when a query comes.
    servers: Vec<IpAddr>,
    doors: Doors,
    /// Queries that are worked on, by who asks.
    busy: Mutex<HashMap<Ipv4Addr, usize>>,
}

impl Dns {
    /// Opens the router's address. `servers` are those that are asked; none: the host's own.
    pub fn open(network: Arc<Network>, servers: Vec<IpAddr>) -> Result<Self, Error> {
        let address = SocketAddr::from((GATEWAY, PORT));
        let open = || -> io::Result<_> {
            let (udp, tcp) = (std::net::UdpSocket::bind(address)?, std::net::TcpListener::bind(address)?);
            udp.set_nonblocking(true)?;
            tcp.set_nonblocking(true)?;
            Ok((udp, tcp))
        };
        let opened = network.in_router(open).and_then(|opened| opened);
        let doors = opened
            .and_then(|(udp, tcp)| Ok(Doors { udp: UdpSocket::from_std(udp)?, tcp: TcpListener::from_std(tcp)? }));
        let doors = doors.doing("open the DNS server of sandboxes")?;
        Ok(Self { network, servers, doors, busy: Mutex::default() })
    }

    /// Answers queries. Never returns.
    pub async fn serve(self: Arc<Self>) {
        tokio::join!(self.serve_datagrams(), self.serve_connections());
    }

    async fn serve_datagrams(self: &Arc<Self>) {
        let mut query = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let Ok((length, from)) = self.doors.udp.recv_from(&mut query).await else {
                // An error of an earlier answer, at most.
                tokio::task::yield_now().await;
                continue;
            };
            let Some(turn) = self.turn_of(from) else { continue };
            let (dns, query) = (Arc::clone(self), query[..length].to_vec());
            tokio::spawn(async move {
                if let Some(answer) = turn.answer(&query, Way::Datagram).await {
                    // A sandbox that is gone by now needs none.
                    let _ = dns.doors.udp.send_to(&answer, from).await;
                }
            });
        }
    }

    async fn serve_connections(self: &Arc<Self>) {
        loop {
            let Ok((stream, from)) = self.doors.tcp.accept().await else {
                // Too many files are open, or it ended meanwhile.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            if let Some(turn) = self.turn_of(from) {
                tokio::spawn(async move {
                    // It hung up, or was idle.
                    let _ = turn.converse(stream).await;
                });
            }
        }
    }

    /// None: a sandbox has too much to do already, or all have.
    fn turn_of(self: &Arc<Self>, from: SocketAddr) -> Option<Turn> {
        let IpAddr::V4(address) = from.ip() else { return None };
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = if busy.len() > ALL_MAX / QUERIES_MAX { busy.values().sum() } else { 0 };
        let count = busy.entry(address).or_default();
        if *count >= QUERIES_MAX || all >= ALL_MAX {
            return None;
        }
        *count += 1;
        drop(busy);
        Some(Turn { dns: Arc::clone(self), address })
    }

    /// Asks one server after the other.
    async fn ask(&self, asked: &Message, query: &[u8], way: Way, reach: &Reach) -> Option<Vec<u8>> {
        for server in self.servers_of(reach) {
            let passed_on = async {
                match way {
                    Way::Datagram => ask_by_datagram(server, query).await,
                    Way::Connection => ask_by_connection(server, query).await,
                }
            };
            match timeout(SERVER_MAX, passed_on).await {
                Ok(Ok(answer)) if answers(&answer, asked) => return Some(answer),
                _ => tracing::debug!(%server, "a DNS server gives no answer"),
            }
        }
        None
    }

    /// The addresses of a name, from the servers of a sandbox.
    pub async fn resolve(&self, reach: &Reach, name: &DomainName) -> io::Result<Vec<Ipv4Addr>> {
        let question = Name::from_ascii(format!("{name}.")).map_err(io::Error::other)?;
        let mut id = [0; 2];
        base::id::fill_random(&mut id);
        let mut asked = Message::new(u16::from_ne_bytes(id), MessageType::Query, OpCode::Query);
        asked.metadata.recursion_desired = true;
        asked.add_query(Query::query(question, RecordType::A));
        let query = asked.to_vec().map_err(io::Error::other)?;
        let mut answer = None;
        for way in [Way::Datagram, Way::Connection] {
            let answered = timeout(ANSWER_MAX, self.ask(&asked, &query, way, reach)).await?;
            let read = answered.and_then(|answer| Message::from_vec(&answer).ok()).ok_or(io::ErrorKind::TimedOut)?;
            let is_whole = !read.metadata.truncation;
            answer = Some(read);
            if is_whole {
                break;
            }
        }
        // Of the name itself, or of others that it stands for: the server has followed these.
        let records = answer.into_iter().flat_map(|answer| answer.answers);
        let address = |record: Record| match record.data {
            RData::A(address) => Some(address.0),
            _ => None,
        };
        Ok(records.filter_map(address).collect())
    }

    /// Whom to ask for a sandbox, in this order.
    fn servers_of(&self, reach: &Reach) -> Vec<SocketAddr> {
        let of_host = || std::fs::read_to_string(RESOLV_CONF).map(|text| servers_in(&text)).unwrap_or_default();
        let servers = match (reach.dns().is_empty(), self.servers.is_empty()) {
            (false, _) => reach.dns().to_vec(),
            (true, false) => self.servers.clone(),
            (true, true) => of_host(),
        };
        servers.into_iter().map(|server| SocketAddr::from((server, PORT))).collect()
    }
}

/// How a query came, and is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Datagram,
    Connection,
}

/// Something that is done for a sandbox, counted while it is.
struct Turn {
    dns: Arc<Dns>,
    address: Ipv4Addr,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut busy = self.dns.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = busy.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                busy.remove(&self.address);
            }
        }
    }
}

impl Turn {
    /// The answer to a query; none if it is no query.
    async fn answer(&self, query: &[u8], way: Way) -> Option<Vec<u8>> {
        let asked = Message::from_vec(query).ok().filter(|asked| asked.metadata.message_type == MessageType::Query)?;
        let (id, reach) = self.dns.network.sandbox_at(self.address)?;
        let is_plain = asked.metadata.op_code == OpCode::Query && asked.queries.len() == 1;
        let name = asked.queries.first().and_then(|query| query.name().to_ascii().parse().ok());
        if !is_plain || !reach.resolves(name.as_ref()) {
            return refusal(&asked, ResponseCode::Refused);
        }
        let answered = timeout(ANSWER_MAX, self.dns.ask(&asked, query, way, &reach)).await;
        // Meanwhile the address may have become another sandbox's.
        self.dns.network.sandbox_at(self.address).filter(|(now, _)| *now == id)?;
        answered.unwrap_or_default().or_else(|| refusal(&asked, ResponseCode::ServFail))
    }

    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let query = timeout(IDLE_MAX, read_message(&mut stream)).await??;
            let Some(answer) = self.answer(&query, Way::Connection).await else { return Ok(()) };
            timeout(IDLE_MAX, write_message(&mut stream, &answer)).await??;
        }
    }
}

/// The servers that a resolv.conf lists.
fn servers_in(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    };
    text.lines().filter_map(server).collect()
}

fn refusal(asked: &Message, code: ResponseCode) -> Option<Vec<u8>> {
    let mut answer = Message::error_msg(asked.metadata.id, asked.metadata.op_code, code);
    answer.add_queries(asked.queries.iter().cloned());
    answer.to_vec().ok()
}

/// Whether it is the answer to this question. Others are forged, or late.
fn answers(answer: &[u8], asked: &Message) -> bool {
    Message::from_vec(answer).is_ok_and(|answer| {
        let (is, was) = (&answer.metadata, &asked.metadata);
        is.message_type == MessageType::Response && is.id == was.id && answer.queries == asked.queries
    })
}

async fn ask_by_datagram(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    // A port of its own, by chance, which no other answer comes to.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; MESSAGE_BYTES_MAX];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

async fn ask_by_connection(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    read_message(&mut stream).await
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(id: u16, name: &str) -> Message {
        let mut query = Message::new(id, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        query
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let asked = query(7, "example.com.");
        let answer = |id, name| refusal(&query(id, name), ResponseCode::NoError).unwrap();
        assert!(answers(&answer(7, "example.com."), &asked));
        assert!(!answers(&answer(8, "example.com."), &asked) && !answers(&answer(7, "example.org."), &asked));
        assert!(!answers(&asked.to_vec().unwrap(), &asked) && !answers(b"", &asked) && !answers(&[0; 12], &asked));
    }

    #[test]
    fn servers_are_those_of_a_resolv_conf() {
        let text = "# nameserver 9.9.9.9\nsearch a b\nnameserver 10.0.0.2\nnameserver\t::1 \nnameserver x\noptions y\n";
        assert_eq!(servers_in(text), [IpAddr::from([10, 0, 0, 2]), "::1".parse().unwrap()]);
    }
}
