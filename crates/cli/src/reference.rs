//! `docs/cli.md`: the help of all visible commands as one document. A test compares both.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::commands::Cli;

/// Characters of a line.
const WIDTH: usize = 120;

const HEAD: &str = "\
# The command line

`pando COMMAND --help` says the same. This page is made from it: `make cli-docs`.
";

fn document() -> String {
    let mut cli = Cli::command();
    // Gives commands their whole names and the global options.
    cli.build();
    let mut text = HEAD.to_owned();
    let usage = cli.render_usage().to_string();
    write!(text, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ")).unwrap();
    let globals: Vec<&Arg> = cli.get_arguments().filter(|arg| arg.is_global_set()).collect();
    text.push_str("\nOptions of every command:\n\n");
    globals.iter().for_each(|arg| text.push_str(&argument(arg)));
    after(&mut text, &cli);
    for command in visible(&mut cli) {
        section(&mut text, command, 2);
    }
    text
}

fn visible(command: &mut Command) -> impl Iterator<Item = &mut Command> {
    command.get_subcommands_mut().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn section(text: &mut String, command: &mut Command, level: usize) {
    let usage = command.render_usage().to_string();
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    writeln!(text, "\n{} {name}", "#".repeat(level)).unwrap();
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    for paragraph in about.split("\n\n") {
        write!(text, "\n{}\n", wrapped(&sentence(&plain(paragraph)), "")).unwrap();
    }
    let usage: Vec<&str> = usage.lines().map(|line| line.trim_start_matches("Usage:").trim()).collect();
    write!(text, "\n```text\n{}\n```\n", usage.join("\n")).unwrap();
    let own = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && !is_common(arg));
    let own: String = own.map(argument).collect();
    if !own.is_empty() {
        write!(text, "\n{own}").unwrap();
    }
    after(text, command);
    for command in visible(command) {
        section(text, command, level + 1);
    }
}

/// Options that clap adds to every command.
fn is_common(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "help" | "version")
}

fn after(text: &mut String, command: &Command) {
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        write!(text, "\n```text\n{}\n```\n", wrapped_lines(&after.to_string())).unwrap();
    }
}

/// One argument as an item of a list.
fn argument(arg: &Arg) -> String {
    let values: Vec<String> = arg.get_value_names().into_iter().flatten().map(|name| name.to_string()).collect();
    let value =
        if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) { values.join(" ") } else { String::new() };
    let flags = [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let flags: Vec<String> = flags.into_iter().flatten().collect();
    let name = if flags.is_empty() { value } else { format!("{} {value}", flags.join(", ")).trim_end().to_owned() };
    let mut help = sentence(&arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default());
    let choices: Vec<String> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !choices.is_empty() && !matches!(arg.get_action(), ArgAction::SetTrue) {
        write!(help, " One of {}.", choices.join(", ")).unwrap();
    }
    if let ([default], ArgAction::Set) = (arg.get_default_values(), arg.get_action()) {
        write!(help, " Default: `{}`.", default.to_string_lossy()).unwrap();
    }
    if let Some(variable) = arg.get_env() {
        write!(help, " Environment: `{}`.", variable.to_string_lossy()).unwrap();
    }
    format!("- {}\n", wrapped(&format!("`{name}`: {}", plain(&help)), "  "))
}

/// clap takes the full stop off a text of one paragraph.
fn sentence(text: &str) -> String {
    let stop = if text.is_empty() || text.ends_with(['.', '!', '?', ':']) { "" } else { "." };
    format!("{text}{stop}")
}

/// A text whose angle brackets are none of HTML.
fn plain(text: &str) -> String {
    text.split('`')
        .enumerate()
        .map(|(at, part)| if at % 2 == 0 { part.replace('<', "\\<") } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

/// Breaks a paragraph into lines. Those after the first, which may be behind the mark of a list, begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        let room = WIDTH - indent.len();
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= room {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(&format!("\n{indent}"))
}

/// Breaks the lines of a text that is too wide and keeps the others as they are.
fn wrapped_lines(text: &str) -> String {
    let line =
        |line: &str| if line.chars().count() > WIDTH { wrapped(line, "    ") } else { line.trim_end().to_owned() };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_document_is_the_help() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let document = document();
    if std::env::var_os("PANDO_BLESS").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let differs = there.lines().zip(document.lines()).position(|(there, now)| there != now);
    assert!(
        there == document,
        "docs/cli.md is not what the help says, first at line {:?}: `make cli-docs` makes it anew",
        differs.map(|at| at + 1)
    );
}

#[test]
fn lines_are_short_and_no_hidden_command_is_shown() {
    let document = document();
    for line in document.lines().filter(|line| line.trim().contains(' ')) {
        assert!(line.chars().count() <= WIDTH, "{line}");
    }
    assert!(document.contains("## pando create\n") && document.contains("### pando volume fork\n"));
    assert!(!document.contains("pando keeper"));
}
