//! Real programs of many processes are forked, kept and paused while they work: a database with clients, a store that saves in a child, a terminal
//! multiplexer.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use super::{
    files_only::{fork, with_idle},
    shared::Shared,
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |program: &'static Program| {
        let body = || with_idle(|shared, node| goes_on(shared, node, program));
        let case = Case::new(format!("real_trees::{}", program.name), body);
        case.slow("a program of full size goes on in copies, and on other nodes")
    };
    PROGRAMS.iter().map(case).collect()
}

/// A program of several processes. Each text is one for `sh`.
struct Program {
    name: &'static str,
    /// Commands, with their tags.
    commands: &'static [(&'static str, &'static str)],
    /// Before the first of them.
    prepare: &'static str,
    /// Succeeds when they work.
    ready: &'static str,
    /// Succeeds if all of it has gone on and goes on.
    check: &'static str,
}

const PROGRAMS: [Program; 3] = [POSTGRES, REDIS, TMUX];

/// As it is packaged: one System V segment, its memory, workers, and clients over both kinds of sockets. The sums agree after each transaction.
const POSTGRES: Program = Program {
    name: "postgres_with_clients_goes_on_consistent",
    prepare: "cd /home/user; export PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; initdb -A trust -N -D db > /dev/null
        echo \"unix_socket_directories = '/tmp'\" >> db/postgresql.conf
        pg_ctl -D db -w start > log; pgbench -h /tmp -i -q postgres 2> /dev/null; pg_ctl -D db -m fast stop >> log",
    commands: &[
        ("database", "cd /home/user; exec /usr/lib/postgresql/*/bin/postgres -D db"),
        ("unix", CLIENTS_UNIX),
        ("tcp", CLIENTS_TCP),
    ],
    ready: "test $(psql -h /tmp -Atc 'select count(*) from pgbench_history' postgres) -gt 30",
    check: "set -e; ask() { psql -h /tmp -Atc \"$1\" postgres; }
        sums=$(ask 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
            and (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)')
        test $sums = t
        ask 'select application_name, count(*) from pg_stat_activity where client_addr is null group by 1' | grep -q 'pgbench|2'
        ask 'select application_name, count(*) from pg_stat_activity where client_addr is not null group by 1' | grep -q 'pgbench|2'
        count() { ask 'select count(*) from pgbench_history'; }
        before=$(count); n=0; until test $(count) -gt $before; do n=$((n+1)); test $n -lt 100; sleep 0.2; done
        ipcs -m | grep -q user",
};

const CLIENTS_UNIX: &str = "until pg_isready -q -h /tmp; do sleep 0.1; done
    exec /usr/lib/postgresql/*/bin/pgbench -h /tmp -n -c 2 -R 20 -T 100000 postgres";
const CLIENTS_TCP: &str = "until pg_isready -q -h 127.0.0.1; do sleep 0.1; done
    exec /usr/lib/postgresql/*/bin/pgbench -h 127.0.0.1 -n -c 2 -R 20 -T 100000 postgres";

/// A child of it saves what it has again and again, beside clients.
const REDIS: Program = Program {
    name: "redis_that_saves_goes_on",
    prepare: "true",
    commands: &[
        ("store", "cd /home/user; exec redis-server --port 0 --unixsocket /tmp/redis --appendonly yes --save ''"),
        (
            "clients",
            "until redis-cli -s /tmp/redis ping | grep -q PONG; do sleep 0.1; done
             redis-cli -s /tmp/redis set kept value
             for i in 1 2 3 4; do redis-cli -s /tmp/redis -r -1 -i 0.02 incr counter > /dev/null & done; wait",
        ),
        ("saver", "while sleep 0.2; do redis-cli -s /tmp/redis bgsave; done"),
    ],
    ready: "redis-cli -s /tmp/redis get kept | grep -q value && test -s /home/user/dump.rdb",
    check: "set -e; number() { redis-cli -s /tmp/redis get counter; }
        test $(redis-cli -s /tmp/redis get kept) = value
        saved() { redis-cli -s /tmp/redis lastsave; }
        before=$(number); last=$(saved); n=0
        until test $(number) -gt $before && test $(saved) -gt $last; do n=$((n+1)); test $n -lt 100; sleep 0.2; done
        test $(redis-cli -s /tmp/redis info clients | tr -d '\\r' | sed -n 's/^connected_clients://p') -ge 5",
};

/// A server with two shells on terminals of its own.
const TMUX: Program = Program {
    name: "tmux_with_shells_goes_on",
    prepare: "true",
    commands: &[(
        "server",
        "tmux -S /tmp/tmux -f /dev/null new-session -d -s work -x 100 -y 30 'bash --norc'
         tmux -S /tmp/tmux split-window -t work 'bash --norc'
         tmux -S /tmp/tmux send-keys -t work.0 'V=kept0; sleep 1000000 &' Enter
         tmux -S /tmp/tmux send-keys -t work.1 'V=kept1' Enter; exec sleep 1000000",
    )],
    ready: "sleep 1; tmux -S /tmp/tmux capture-pane -p -t work.1 | grep -q kept1",
    check: "set -e; tmux() { command tmux -S /tmp/tmux \"$@\"; }
        for n in 0 1; do
            tmux send-keys -t work.$n 'clear; echo is-$V-$(jobs -p | wc -l)' Enter
            for i in 1 2 3 4 5 6 7 8 9; do sleep 0.3; tmux capture-pane -p -t work.$n | grep -q ^is-kept$n-$((1-n))$ && break; done
            tmux capture-pane -p -t work.$n | grep -q ^is-kept$n-$((1-n))$
        done",
};

/// In two copies, in a copy of one, after a checkpoint and after a pause on another node, and in the source after each of it.
fn goes_on(shared: &Shared, node: &mut Node, program: &Program) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    node.shell(&id, program.prepare).context("prepare it")?;
    for (tag, command) in program.commands {
        node.ok(&["exec", "-d", "--tag", tag, &id, "--", "/bin/sh", "-c", command])?;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while node.shell(&id, program.ready).is_err() {
        ensure!(Instant::now() < deadline, "it is not ready");
        sleep(Duration::from_millis(200));
    }
    let check = |node: &Node, id: &str, what: &str| {
        node.shell(id, program.check).map(drop).with_context(|| format!("{what}, sandbox {id}"))
    };
    check(node, &id, "before all")?;
    let copies = fork(node, &["-n", "2", &id])?;
    let next = fork(node, &[&copies[0]])?.remove(0);
    for (id, what) in
        [(&id, "the source"), (&copies[0], "a copy"), (&copies[1], "another"), (&next, "a copy of a copy")]
    {
        check(node, id, what)?;
    }
    for copy in copies.iter().chain([&next]) {
        node.ok(&["kill", copy])?;
    }
    node.ok(&["checkpoint", &id, "--name", "tree"])?;
    check(node, &id, "the source after a checkpoint")?;
    let other = shared.distant_node()?;
    let restored = other.run("tree", 1)?[0].id.to_string();
    check(&other, &restored, "a start of the checkpoint")?;
    other.ok(&["kill", &restored])?;
    node.ok(&["pause", &id])?;
    other.ok(&["resume", &id])?;
    check(&other, &id, "after a pause, on another node")?;
    other.ok(&["kill", &id])?;
    other.finish()?;
    node.ok(&["checkpoint", "rm", "tree"]).map(drop)
}
