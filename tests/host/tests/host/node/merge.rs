//! Changes of files in one sandbox, since a common fork, are brought into another.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::{
    changes::kept,
    images::{import, root, script},
    volumes::{fails, run_with, with_scribe},
    volumes_kept::wait_until,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("merge::what_one_fork_has_changed_is_taken_over_by_another", || case(taken)),
        Case::new("merge::with_a_conflict_nothing_is_changed", || case(conflicts)),
        Case::new("merge::owners_modes_links_and_attributes_come_along", || case(exact)),
        Case::new("merge::forks_are_remembered_over_pauses_restarts_and_removals", || case(remembered)),
        Case::new("merge::what_has_no_room_changes_nothing", || case(full)),
        Case::new("merge::mounts_are_left_alone", || with_scribe(&["--pool", "2"], |node| mounts(node))),
    ]
}

fn case(body: fn(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start_with(Setting::default())?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn fork(node: &Node, id: &str, count: usize) -> Result<Vec<String>> {
    let response = node.json(&["fork", id, "-n", &count.to_string(), "--json"])?;
    let copies = response["sandboxes"].as_array().context("no copies")?;
    copies.iter().map(|copy| Ok(copy["id"].as_str().context("no id")?.to_owned())).collect()
}

/// A sandbox of a template that counts by itself, and with a few files.
fn source(node: &Node, options: &[&str]) -> Result<String> {
    let program = ["--", "/bin/sh", "-c", "while sleep 0.1; do :; done"];
    node.ok(&[&["template", "build", "plain", "--ready", "true"], options, &program].concat())?;
    let id = node.run("plain", 1)?[0].id.to_string();
    node.shell(
        &id,
        "cd /home/user; mkdir -p src/deep old; for f in a b c d; do echo $f > src/$f; done
         echo deep > src/deep/x; echo old > old/x; ln -s a src/link; chmod 644 src/[abcd]",
    )?;
    Ok(id)
}

/// All files below the home directory.
const LIST: &str = "cd /home/user && find . ! -name . -printf '%p %y %m %s %l %n\\n' | sort
                    find . -type f | sort | xargs md5sum";

fn taken(node: &mut Node) -> Result<()> {
    let source = source(node, &[])?;
    let copies = fork(node, &source, 2)?;
    let [one, other] = [&copies[0], &copies[1]];
    node.shell(one, "cd /home/user; echo mine > src/a; echo mine > mine; rm src/d; mkdir own; echo x > own/x")?;
    node.shell(
        other,
        "cd /home/user; echo theirs > src/b; chmod 600 src/c; rm -r old; ln -sf b src/link; mkdir -p new/below
         echo 1 > new/below/x; ln new/below/x new/y; mkfifo new/pipe; ln -s /etc/passwd new/link; truncate -s 64M new/holes
         rm -r src/deep; echo file > src/deep; mkdir own; echo y > own/y; chmod 700 src",
    )?;
    let wanted = "M /home/user/src/  mode\n- /home/user/old/\n+ /home/user/new/\n+ /home/user/own/y\n\
                  M /home/user/src/b  content\nM /home/user/src/c  mode\nM /home/user/src/deep  kind\n\
                  M /home/user/src/link  content\n";
    let sorted = |lines: &str| {
        let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let before = node.shell(one, LIST)?;
    let plan = node.ok(&["merge", one, other, "--dry-run"])?;
    ensure!(sorted(&plan) == sorted(wanted), "{plan}");
    ensure!(node.shell(one, LIST)? == before, "a dry run changes nothing");
    // Only a part of it, and then the rest.
    let part = node.ok(&["merge", one, other, "--path", "/home/user/new/", "--path", "/nothing"])?;
    ensure!(part == "+ /home/user/new/\n", "{part}");
    let rest = node.json(&["merge", one, other, "--json"])?;
    ensure!(
        rest["files"].as_array().is_some_and(|files| files.len() == 7) && rest.get("conflicts").is_none(),
        "{rest}"
    );
    // All that one had of its own is there still, and all that the other has.
    node.shell(other, "cd /home/user; echo mine > src/a; echo mine > mine; rm src/d; echo x > own/x")?;
    let (found, expected) = (node.shell(one, LIST)?, node.shell(other, LIST)?);
    ensure!(found == expected, "{found}\n--- wanted:\n{expected}");
    let shown = node.shell(one, "cd /home/user/new; stat -c %b holes; ls -A / | grep -c pando-merge; true")?;
    ensure!(shown == "0\n0\n", "holes, and nothing left in the root: {shown:?}");
    // Again: there is nothing to do. The other way round: nothing either.
    for [into, from] in [[one, other], [other, one]] {
        ensure!(node.ok(&["merge", into, from])?.is_empty());
    }
    // The original takes over what the copy has, and has it from then on.
    node.ok(&["merge", &source, one])?;
    ensure!(node.shell(&source, LIST)? == expected, "the original");
    Ok(())
}

fn conflicts(node: &mut Node) -> Result<()> {
    let source = source(node, &[])?;
    let copies = fork(node, &source, 2)?;
    let [one, other] = [&copies[0], &copies[1]];
    node.shell(
        one,
        "cd /home/user; echo mine > src/a; rm src/b; echo more > old/y; echo mine > new; echo same > same",
    )?;
    node.shell(
        other,
        "cd /home/user; echo theirs > src/a; echo theirs > src/b; rm -r old; echo theirs > new; echo same > same; echo x > fine",
    )?;
    let before = node.shell(one, LIST)?;
    let answer = node.pando(&["merge", one, other])?;
    let named = ["/home/user/src/a: changed here, changed there", "/home/user/src/b: removed here, changed there"];
    let more = ["/home/user/old/: changed here, removed there", "/home/user/new: added here, added there", "--path"];
    for part in named.into_iter().chain(more) {
        ensure!(answer.code == 1 && answer.stderr.contains(part), "{part:?}: {answer}");
    }
    ensure!(!answer.stderr.contains("same:") && !answer.stderr.contains("fine"), "{answer}");
    ensure!(node.shell(one, LIST)? == before, "nothing is changed");
    let plan = node.pando(&["merge", one, other, "--dry-run"])?;
    ensure!(
        plan.code == 1 && plan.stdout.contains("C /home/user/src/b  SANDBOX removed it, OTHER changed it\n"),
        "{plan}"
    );
    ensure!(plan.stdout.contains("+ /home/user/fine\n") && plan.stdout.lines().count() == 5, "{plan}");
    let (status, body) =
        node.api(&format!("POST /v1/sandboxes/{one}/merge"), format!("{{\"from\":\"{other}\"}}").as_bytes())?;
    ensure!(status == 409 && body.contains("\"conflict\""), "{status} {body}");
    // The same file in both is no conflict, and a part without one can be taken.
    ensure!(node.ok(&["merge", one, other, "--path", "/home/user/fine"])? == "+ /home/user/fine\n");
    // Nothing to go back to.
    let stranger = node.run("plain", 1)?[0].id.to_string();
    fails(node, &["merge", one, &stranger], 2, "no fork")?;
    fails(node, &["merge", one, one], 2, "one sandbox")?;
    fails(node, &["merge", one, other, "--path", "home"], 2, "absolute")?;
    fails(node, &["merge", one, "s000000000000"], 4, "s000000000000")?;
    node.ok(&["pause", other])?;
    fails(node, &["merge", one, other], 1, "paused")
}

/// setfacl and getfacl with their libraries.
const TOOLS: &str = r#"
for tool in setfacl getfacl; do
    cp -L "$(command -v $tool)" "$1/bin/"
    for library in $(ldd "$(command -v $tool)" | grep -o '/[^ ]*'); do mkdir -p "$1$(dirname "$library")"; cp -L "$library" "$1$library"; done
done
for name in chown chmod mkdir mkfifo ln touch; do ln -s busybox "$1/bin/$name"; done
"#;

fn exact(node: &mut Node) -> Result<()> {
    let image = root(node, "image")?;
    script(TOOLS, &[Path::new(&image.join("0"))])?;
    import(node, "save", &image, "image.tar")?;
    node.ok(&["template", "build", "roots", "--image", "example/app:1.0", "--user", "root"])?;
    let id = node.run("roots", 1)?[0].id.to_string();
    let run = |id: &str, script: &str| node.ok(&["exec", "-u", "root", id, "--", "/bin/sh", "-ec", script]);
    run(&id, "mkdir -p /srv/kept; echo x > /srv/changed; setfacl -m u:5:r /srv/kept")?;
    let copies = fork(node, &id, 2)?;
    run(
        &copies[1],
        "cd /srv; mkdir all; echo 1 > all/a; chown 1234:77 all/a; chmod 6755 all/a; ln all/a all/b; mkfifo all/p
         setfacl -m u:55:rwx,g:66:r,d:u:77:r all; ln -s nowhere all/l; chown -h 9:9 all/l
         chown 3:4 changed; touch -d '2001-02-03 04:05:06' all/a; setfacl -b kept; chmod 1777 kept",
    )?;
    let tell = "cd /srv; for f in all all/a all/b all/p all/l changed kept; do stat -c '%n %A %u %g %h %F' $f; done
                stat -c %Y all/a; getfacl -n all kept";
    run(&copies[0], "echo y > /srv/kept/below")?;
    node.ok(&["merge", &copies[0], &copies[1]])?;
    let (found, expected) = (run(&copies[0], tell)?, run(&copies[1], tell)?);
    ensure!(
        found == expected && found.contains("user:55:rwx") && !found.contains("user:5:"),
        "{found}\n---\n{expected}"
    );
    ensure!(run(&copies[0], "cat /srv/kept/below /srv/changed")? == "y\nx\n");
    Ok(())
}

fn remembered(node: &mut Node) -> Result<()> {
    let first = source(node, &[])?;
    let write = |node: &Node, id: &str, name: &str| node.shell(id, &format!("echo {name} > /home/user/{name}"));
    let middle = fork(node, &first, 1)?.remove(0);
    write(node, &middle, "middle")?;
    let last = fork(node, &middle, 1)?.remove(0);
    write(node, &last, "last")?;
    write(node, &first, "first")?;
    let sibling = fork(node, &first, 1)?.remove(0);
    write(node, &sibling, "sibling")?;
    node.ok(&["kill", &middle])?;
    node.ok(&["pause", &last])?;
    node.ok(&["resume", &last])?;
    node.kill_server()?;
    node.start_server()?;
    // The last one and the sibling part at the first fork: what the first has written later is the sibling's.
    let taken = node.ok(&["merge", &last, &sibling])?;
    ensure!(taken == "+ /home/user/first\n+ /home/user/sibling\n", "{taken}");
    node.ok(&["kill", &sibling])?;
    let taken = node.ok(&["merge", &first, &last])?;
    ensure!(taken == "+ /home/user/last\n+ /home/user/middle\n+ /home/user/sibling\n", "{taken}");
    node.ok(&["kill", &first])?;
    // Nothing is left that the last one could be merged with, and nothing is kept for that.
    wait_until(|| Ok(kept(node)?.is_empty())).with_context(|| format!("kept: {:?}", kept(node)))
}

fn full(node: &mut Node) -> Result<()> {
    let source = source(node, &["--disk", "16M"])?;
    let copies = fork(node, &source, 2)?;
    let [one, other] = [&copies[0], &copies[1]];
    node.shell(one, "cat /dev/zero > /home/user/large; true")?;
    // Larger files would share their data with those of the other one, and take nothing.
    let small =
        "cd /home/user; rm src/a; mkdir many; for n in $(seq 1000); do head -c 1900 /dev/urandom > many/$n; done";
    node.shell(other, small)?;
    let before = node.shell(one, LIST)?;
    let answer = node.pando(&["merge", one, other])?;
    ensure!(answer.code != 0 && answer.stderr.to_lowercase().contains("quota"), "{answer}");
    ensure!(node.shell(one, LIST)? == before, "nothing is changed");
    ensure!(node.shell(one, "ls -A / | grep -c pando-merge; true")? == "0\n", "nothing is left");
    Ok(())
}

fn mounts(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let source = run_with(node, &["ws:/workspace"])?;
    let copies = fork(node, &source, 2)?;
    let [one, other] = [&copies[0], &copies[1]];
    node.shell(other, "echo in the volume > /workspace/file; echo fine > /tmp/fine")?;
    // A file in a volume is none of the sandbox.
    ensure!(node.ok(&["merge", one, other, "--dry-run", "--path", "/workspace"])?.is_empty());
    let taken = node.ok(&["merge", one, other, "--path", "/tmp"])?;
    ensure!(taken == "+ /tmp/fine\n", "{taken}");
    ensure!(node.shell(one, "ls /workspace/file 2>&1; true")?.contains("cannot access"));
    Ok(())
}
