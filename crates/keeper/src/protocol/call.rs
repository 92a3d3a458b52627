//! All requests in one table, each with the types that belong to it.

use std::{os::fd::OwnedFd, time::Duration};

use base::id::RequestId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Adopt, Adopted, AttachMounts, BindLimits, BuiltOrRefused, Capture, CreateBare, CreateSandbox, Created,
    DestroySandbox, DropZygote, Forked, Furnish, MakeMountPoints, ParkCopy, ReleaseCopy, Released, RestoreZygote,
    Spawn, StartCopy, StartHand, Thaw,
};

/// A request of the server, with the types that belong to it.
pub trait Call: Into<Request> {
    /// What the keeper answers if the request succeeds.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// The files that go with the request.
    type Files: Files;
    /// What the request does, for messages: "cannot {ACTION}: ...".
    const ACTION: &'static str;
    /// How long the server waits for the answer. All but captures take milliseconds; the rest is for a host in trouble.
    const DEADLINE: Duration;
}

/// The files that go with a request: a fixed number, or any number.
pub trait Files: Sized {
    /// The same files, lent by the server.
    type Lent<'a>: AsRef<[&'a OwnedFd]> + Send;

    /// Takes the files that arrived. None if the number is wrong.
    fn take(arrived: Vec<OwnedFd>) -> Option<Self>;
}

impl<const N: usize> Files for [OwnedFd; N] {
    type Lent<'a> = [&'a OwnedFd; N];

    fn take(arrived: Vec<OwnedFd>) -> Option<Self> {
        arrived.try_into().ok()
    }
}

impl Files for Vec<OwnedFd> {
    type Lent<'a> = Vec<&'a OwnedFd>;

    fn take(arrived: Vec<OwnedFd>) -> Option<Self> {
        Some(arrived)
    }
}

type NoFiles = [OwnedFd; 0];
/// The two ends of [`sandbox::Output`]: pipe and file.
type Output = [OwnedFd; 2];
/// Standard input, output and error.
type Stdio = [OwnedFd; 3];

/// Making one sandbox, or changing one.
const SANDBOX_S: u64 = 20;
/// Starting one copy or command: also the last of a thousand.
const START_S: u64 = 30;
/// Ending processes and removing files: a large upper directory takes a while.
const REMOVAL_S: u64 = 60;
/// Copying the memory of a large program.
const ZYGOTE_S: u64 = 600;

/// A request, and for whom it is made.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sent {
    /// The HTTP request that it belongs to, if any.
    pub origin: Option<RequestId>,
    /// What the keeper does.
    pub request: Request,
}

macro_rules! calls {
    ($($request:ident, $files:ty => $reply:ty, $action:literal, $seconds:ident;)*) => {
        /// Any request, as it goes over the socket.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[allow(missing_docs)] // the requests have it
        pub enum Request {
            $($request($request),)*
        }

        $(
            impl From<$request> for Request {
                fn from(request: $request) -> Self {
                    Self::$request(request)
                }
            }

            impl TryFrom<Request> for $request {
                type Error = Request;
                fn try_from(request: Request) -> Result<Self, Request> {
                    match request {
                        Request::$request(request) => Ok(request),
                        other => Err(other),
                    }
                }
            }

            impl Call for $request {
                type Reply = $reply;
                type Files = $files;
                const ACTION: &'static str = $action;
                const DEADLINE: Duration = Duration::from_secs($seconds);
            }
        )*
    };
}

calls! {
    // request        files          reply           "cannot ..."          deadline
    CreateSandbox,    Output      => Created,        "make a sandbox",     SANDBOX_S;
    CreateBare,       NoFiles     => Created,        "make a sandbox",     SANDBOX_S;
    Furnish,          Output      => Created,        "make a sandbox",     SANDBOX_S;
    MakeMountPoints,  NoFiles     => (),             "make mount points",  SANDBOX_S;
    AttachMounts,     Vec<OwnedFd> => (),            "mount the volumes",  SANDBOX_S;
    Thaw,             NoFiles     => (),             "thaw the sandbox",   SANDBOX_S;
    Adopt,            NoFiles     => Adopted,        "adopt the sandbox",  SANDBOX_S;
    BindLimits,       NoFiles     => (),             "bind limits",        SANDBOX_S;
    Spawn,            Stdio       => Forked,         "start the program",  START_S;
    StartHand,        [OwnedFd; 1] => Forked,        "open the sandbox's files", START_S;
    DestroySandbox,   NoFiles     => (),             "remove the sandbox", REMOVAL_S;
    Capture,          NoFiles     => BuiltOrRefused, "build the zygote",   ZYGOTE_S;
    RestoreZygote,    [OwnedFd; 1] => BuiltOrRefused, "restore the zygote", ZYGOTE_S;
    StartCopy,        Vec<OwnedFd> => Forked,        "start the sandbox",  START_S;
    ParkCopy,         Vec<OwnedFd> => Forked,        "fork ahead",         START_S;
    ReleaseCopy,      NoFiles     => Released,       "start the sandbox",  START_S;
    DropZygote,       NoFiles     => (),             "drop the zygote",    REMOVAL_S;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_type_on_the_wire() {
        let request = DropZygote { zygote: base::id::ZygoteId(7) };
        assert_eq!(serde_json::to_string(&Request::from(request)).unwrap(), r#"{"DropZygote":{"zygote":7}}"#);
    }

    #[test]
    fn files_of_the_wrong_number_are_not_taken() {
        let files = |count: usize| -> Vec<OwnedFd> {
            (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect()
        };
        assert!(Stdio::take(files(3)).is_some());
        assert!(Stdio::take(files(2)).is_none() && Stdio::take(files(4)).is_none());
        assert!(NoFiles::take(files(0)).is_some() && NoFiles::take(files(1)).is_none());
        assert_eq!(Vec::take(files(5)).unwrap().len(), 5);
    }
}
