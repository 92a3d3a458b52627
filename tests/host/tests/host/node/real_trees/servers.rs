//! Servers with workers, each with a client that asks all the time, and a browser.

use super::Program;

pub(super) const ALL: &[Program] = &[BROWSER, CLUSTER, GUNICORN, NGINX, ERLANG];

/// Asks a port by one connection, again and again, and notes each answer.
macro_rules! client {
    ($port:literal) => {
        concat!(
            r#"exec python3 -c '
import http.client, time
said, line = open("/tmp/said", "a", 1), None
while True:
    try:
        if not line:
            line = http.client.HTTPConnection("127.0.0.1", "#,
            $port,
            r#", timeout=5)
            line.connect()
        line.request("GET", "/")
        answer = line.getresponse()
        text = answer.read().decode()
        if answer.status == 200: print(text, file=said)
        if answer.will_close: line = None
    except (OSError, http.client.HTTPException) as error:
        if line and line.sock: print("broken", error, file=said)
        line = None
    time.sleep(0.02)
'"#
        )
    };
}

/// The client gets answers, no connection of it has broken, and this succeeds.
macro_rules! asked {
    ($more:literal) => {
        concat!("rises /tmp/said; ! grep broken /tmp/said || exit 1; ", $more)
    };
}

/// A page with a timer and a worker, driven over the debugging port.
const BROWSER: Program = Program {
    name: "chromium_goes_on_with_its_pages",
    needs: &["chromium"],
    always_whole: false,
    prepare: concat!("cat > /tmp/browser.py <<'E'\n", include_str!("../../../../../programs/browser.py"), "\nE"),
    commands: &[(
        "browser",
        "cd /home/user; exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
            --remote-debugging-port=9222 --user-data-dir=profile about:blank > /tmp/log 2>&1",
    )],
    ready: "test -e /tmp/begun || { python3 /tmp/browser.py begin && touch /tmp/begun; }",
    check: "python3 /tmp/browser.py check",
};

/// Workers that share a listener, and tell the first process by pipes what they do.
const CLUSTER: Program = Program {
    name: "node_cluster_goes_on_with_its_workers",
    needs: &["node"],
    always_whole: false,
    prepare: r#"cat > /tmp/cluster.js <<'E'
const cluster = require('cluster'), http = require('http'), fs = require('fs');
if (cluster.isPrimary) {
    for (let n = 0; n < 3; n++) cluster.fork().on('message', number => fs.appendFileSync('/tmp/told', number + '\n'));
    cluster.on('exit', (worker, code, signal) => fs.appendFileSync('/tmp/failed', `${code} ${signal}\n`));
} else {
    let number = 0;
    const serve = (request, answer) => { process.send(++number); answer.end(String(process.pid)); };
    http.createServer(serve).listen(8000, '127.0.0.1');
}
E
touch /tmp/failed"#,
    commands: &[("servers", "exec node /tmp/cluster.js"), ("client", client!("8000"))],
    ready: "test $(wc -l < /tmp/told) -gt 5",
    check: asked!("rises /tmp/told; ! test -s /tmp/failed"),
};

/// Workers that are forked beforehand, and tell that they live by the times of files that have no name any more.
const GUNICORN: Program = Program {
    name: "gunicorn_goes_on_with_its_workers",
    needs: &["gunicorn"],
    always_whole: false,
    prepare: r#"mkdir -p /tmp/app; cat > /tmp/app/app.py <<'E'
import os
def app(environment, start):
    start('200 OK', [('Content-Type', 'text/plain')])
    return [str(os.getpid()).encode()]
E"#,
    commands: &[
        ("server", "cd /tmp/app; exec gunicorn -w 3 -k gthread -b 127.0.0.1:8001 -t 5 app:app 2> /tmp/log"),
        ("client", client!("8001")),
    ],
    ready: "test $(wc -l < /tmp/said) -gt 5",
    check: asked!(r"! grep -i 'timeout\|terminated' /tmp/log"),
};

/// A server in front of another one, each with workers.
const NGINX: Program = Program {
    name: "nginx_goes_on_with_workers_of_php",
    needs: &["nginx", "php"],
    always_whole: false,
    prepare: r#"cd /home/user; mkdir -p www; echo '<?php echo getmypid();' > www/index.php
cat > nginx.conf <<'E'
worker_processes 2; daemon off; pid /home/user/nginx.pid; error_log /home/user/nginx.log;
events {}
http {
    access_log off; keepalive_requests 1000000;
    client_body_temp_path /home/user/t1; proxy_temp_path /home/user/t2; fastcgi_temp_path /home/user/t3;
    uwsgi_temp_path /home/user/t4; scgi_temp_path /home/user/t5;
    server {
        listen 127.0.0.1:8002;
        location / {
            include /etc/nginx/fastcgi_params; fastcgi_pass unix:/home/user/php.sock;
            fastcgi_param SCRIPT_FILENAME /home/user/www/index.php;
        }
    }
}
E
cat > php.conf <<'E'
[global]
daemonize = no
error_log = /home/user/php.log
[www]
listen = /home/user/php.sock
pm = static
pm.max_children = 3
E"#,
    commands: &[
        ("php", "exec /usr/sbin/php-fpm* -y /home/user/php.conf"),
        ("nginx", "exec nginx -c /home/user/nginx.conf -e /home/user/nginx.log"),
        ("client", client!("8002")),
    ],
    ready: "test $(wc -l < /tmp/said) -gt 5",
    check: asked!(r"! grep 'alert\|exited' /home/user/nginx.log"),
};

/// A virtual machine with schedulers, a helper process for children, and processes of its own that pass a number round by messages and TCP.
const ERLANG: Program = Program {
    name: "erlang_goes_on_with_its_processes",
    needs: &["erl"],
    always_whole: false,
    prepare: r#"cat > /tmp/ring.erl <<'E'
-module(ring).
-export([start/0]).
start() ->
    {ok, Listener} = gen_tcp:listen(8003, [binary, {packet, 4}, {active, false}, {ip, {127,0,0,1}}]),
    spawn_link(fun() -> {ok, Line} = gen_tcp:accept(Listener), echo(Line) end),
    {ok, Line} = gen_tcp:connect({127,0,0,1}, 8003, [binary, {packet, 4}, {active, false}]),
    Last = lists:foldl(fun(_, Next) -> spawn_link(fun() -> pass(Next) end) end, self(), lists:seq(1, 100)),
    turn(Last, Line, 0).
echo(Line) -> {ok, Bytes} = gen_tcp:recv(Line, 0), ok = gen_tcp:send(Line, Bytes), echo(Line).
pass(Next) -> receive N -> Next ! N + 1 end, pass(Next).
turn(Last, Line, N) ->
    Last ! N,
    receive M -> M = N + 100 end,
    ok = gen_tcp:send(Line, integer_to_binary(M)),
    {ok, Back} = gen_tcp:recv(Line, 0),
    M = binary_to_integer(Back),
    "child\n" = os:cmd("echo child"),
    ok = file:write_file("/tmp/turns", <<Back/binary, "\n">>, [append]),
    timer:sleep(20),
    turn(Last, Line, M).
E
cd /tmp && erlc ring.erl"#,
    commands: &[("machine", "cd /tmp; export HOME=/home/user; exec erl -noshell -s ring > /tmp/log 2>&1")],
    ready: "test $(wc -l < /tmp/turns) -gt 5",
    check: "rises /tmp/turns; cat /tmp/log; ! test -s /tmp/log",
};
