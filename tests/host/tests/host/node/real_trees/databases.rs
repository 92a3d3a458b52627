//! Databases with clients.

use super::Program;

pub(super) const ALL: &[Program] = &[POSTGRES, REDIS];

/// As it is packaged: one System V segment, its memory, workers, and clients over both kinds of sockets. The sums agree after each transaction.
const POSTGRES: Program = Program {
    name: "postgres_with_clients_goes_on_consistent",
    needs: &[],
    always_whole: true,
    prepare: "cd /home/user; export PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; initdb -A trust -N -D db > /dev/null
        echo \"unix_socket_directories = '/tmp'\" >> db/postgresql.conf
        pg_ctl -D db -w start > log; pgbench -h /tmp -i -q postgres 2> /dev/null; pg_ctl -D db -m fast stop >> log",
    commands: &[
        ("database", "cd /home/user; exec /usr/lib/postgresql/*/bin/postgres -D db"),
        ("unix", CLIENTS_UNIX),
        ("tcp", CLIENTS_TCP),
    ],
    ready: "test $(psql -h /tmp -Atc 'select count(*) from pgbench_history' postgres) -gt 30",
    check: "ask() { psql -h /tmp -Atc \"$1\" postgres; }
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
    needs: &[],
    always_whole: true,
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
    check: "number() { redis-cli -s /tmp/redis get counter; }
        test $(redis-cli -s /tmp/redis get kept) = value
        saved() { redis-cli -s /tmp/redis lastsave; }
        before=$(number); last=$(saved); n=0
        until test $(number) -gt $before && test $(saved) -gt $last; do n=$((n+1)); test $n -lt 100; sleep 0.2; done
        test $(redis-cli -s /tmp/redis info clients | tr -d '\\r' | sed -n 's/^connected_clients://p') -ge 5",
};
