//! Programs that make terminals, and jobs.

use super::Program;

pub(super) const ALL: &[Program] = &[TMUX, SCRIPT, EXPECT, MAKE];

/// A server with two shells on terminals of its own.
const TMUX: Program = Program {
    name: "tmux_with_shells_goes_on",
    needs: &[],
    always_whole: true,
    prepare: "true",
    commands: &[(
        "server",
        "tmux -S /tmp/tmux -f /dev/null new-session -d -s work -x 100 -y 30 'bash --norc'
         tmux -S /tmp/tmux split-window -t work 'bash --norc'
         tmux -S /tmp/tmux send-keys -t work.0 'V=kept0; sleep 1000000 &' Enter
         tmux -S /tmp/tmux send-keys -t work.1 'V=kept1' Enter; exec sleep 1000000",
    )],
    ready: "sleep 1; tmux -S /tmp/tmux capture-pane -p -t work.1 | grep -q kept1",
    check: "tmux() { command tmux -S /tmp/tmux \"$@\"; }
        for n in 0 1; do
            tmux send-keys -t work.$n 'clear; echo is-$V-$(jobs -p | wc -l)' Enter
            for i in 1 2 3 4 5 6 7 8 9; do sleep 0.3; tmux capture-pane -p -t work.$n | grep -q ^is-kept$n-$((1-n))$ && break; done
            tmux capture-pane -p -t work.$n | grep -q ^is-kept$n-$((1-n))$
        done",
};

/// A terminal with a session of its own, and a program between it and a file.
const SCRIPT: Program = Program {
    name: "script_goes_on_with_its_terminal",
    needs: &["script"],
    always_whole: false,
    prepare: "true",
    commands: &[("script", "exec script -qfc 'while :; do tty; sleep 0.1; done' /tmp/typescript > /dev/null")],
    ready: "grep -q /dev/pts /tmp/typescript",
    check: "rises /tmp/typescript; ! tail -n 3 /tmp/typescript | grep 'not a tty'",
};

/// A dialogue with a shell.
const EXPECT: Program = Program {
    name: "expect_goes_on_with_its_dialogue",
    needs: &["expect"],
    always_whole: false,
    prepare: r#"cat > /tmp/dialogue <<'E'
set timeout 5
set log [open /tmp/said a]
spawn -noecho bash --norc
set n 0
while 1 {
    incr n
    send "echo is-\$(($n + 1))\r"
    expect {
        "is-[expr $n + 1]" {}
        timeout { puts stderr "no answer"; exit 1 }
    }
    puts $log $n; flush $log
    after 50
}
E"#,
    commands: &[("dialogue", "exec expect /tmp/dialogue > /tmp/shown 2> /tmp/failed")],
    ready: "test $(wc -l < /tmp/said) -gt 5",
    check: "rises /tmp/said; cat /tmp/failed; ! test -s /tmp/failed",
};

/// Jobs that share tokens by a pipe, and end all the time.
const MAKE: Program = Program {
    name: "make_goes_on_with_its_jobs",
    needs: &["make"],
    always_whole: false,
    prepare: r"printf 'all: 1 2 3 4 5 6 7 8\n%%:\n\t@sleep 0.1; echo $@ >> /tmp/made\n' > /tmp/Makefile; touch /tmp/failed",
    commands: &[(
        "make",
        "while :; do make -s -j4 -f /tmp/Makefile 2>> /tmp/failed || echo failed >> /tmp/failed; done",
    )],
    ready: "test $(wc -l < /tmp/made) -gt 10",
    check: "rises /tmp/made; cat /tmp/failed; ! test -s /tmp/failed",
};
