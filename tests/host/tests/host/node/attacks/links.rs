//! A program swaps links under the feet of the file services.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use testkit::node::Node;

use super::Target;

/// How long the race lasts. `PANDO_ROUNDS` multiplies it.
const RACE: Duration = Duration::from_millis(700);

/// `d` is a directory, then a link to the root, to another process's root or to a directory of the host; `f` is a file,
/// then a link. Ends by itself.
const SWAP: &str = "import os, sys, time
os.chdir('/home/user')
os.makedirs('real', exist_ok=True)
open('file', 'w').write('mine')
links = {'a': '/', 'b': '/proc/1/root', 'c': '/proc/self/root', 'e': '../../../../../../..', 'g': sys.argv[1]}
for name, to in links.items():
    os.symlink(to, name)
os.symlink(sys.argv[1] + '/secret', 'h')
print('ready', flush=True)
end = time.time() + float(sys.argv[2])
while time.time() < end:
    for name in ('real', *links):
        os.rename(name, 'd')
        os.rename('d', name)
    for name in ('file', 'h'):
        os.rename(name, 'f')
        os.rename('f', name)
";

pub(super) fn swapped(node: &mut Node) -> Result<()> {
    let target = Target::new(node)?;
    let outside = target.node.dir().join("outside");
    fs::create_dir(&outside)?;
    let secret = "a secret of the host";
    fs::write(outside.join("secret"), secret)?;
    let host = outside.display().to_string();
    let rounds: u32 = std::env::var("PANDO_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let race = RACE * rounds;
    let (status, body) = target.put("/home/user/swap.py", SWAP.as_bytes())?;
    ensure!(status == 200, "{status} {body}");
    let seconds = race.as_secs_f64() + 0.5;
    target.shell(&format!("cd /home/user; python3 swap.py {host} {seconds} > /tmp/log 2>&1 & sleep 0.2"))?;
    let until = Instant::now() + race;
    let (mut done, mut refused) = (0, 0);
    let json = "content-type: application/json\r\n";
    while Instant::now() < until {
        let move_to = "{\"source\": \"f\", \"destination\": \"d/moved\"}";
        let join = "{\"sources\": [\"f\"], \"destination\": \"d/joined\"}";
        for (status, body) in [
            target.get(&format!("/home/user/d{host}/secret"))?,
            target.get("/home/user/d/secret")?,
            target.get("/home/user/f")?,
            target.put(&format!("/home/user/d{host}/written"), b"attack")?,
            target.put("/home/user/d/written", b"attack")?,
            target.put("/home/user/f", b"attack")?,
            target.ask("POST", "/filesystem.Filesystem/ListDir", json, b"{\"path\": \"d\", \"depth\": 2}")?,
            target.ask("POST", "/filesystem.Filesystem/Move", json, move_to.as_bytes())?,
            target.ask("POST", "/files/compose", json, join.as_bytes())?,
            target.ask("POST", "/filesystem.Filesystem/Remove", json, b"{\"path\": \"d\"}")?,
        ] {
            ensure!(!body.contains(secret), "{body:.200}");
            match status {
                200 => done += 1,
                400..500 => refused += 1,
                // A directory that is swapped while it is walked.
                500.. => ensure!(body.contains("\"message\""), "{status} {body:.200}"),
                _ => ensure!(false, "{status} {body:.200}"),
            }
        }
    }
    ensure!(done > 0 && refused > 0, "{done} done and {refused} refused: no race");
    ensure!(fs::read_to_string(outside.join("secret"))? == secret, "the secret changed");
    let names: Vec<_> = fs::read_dir(&outside)?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(names == ["secret"], "written outside: {names:?}");
    fs::remove_dir_all(&outside)?;
    target.end()
}
