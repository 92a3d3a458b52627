//! Commands that the kernel would refuse are refused first, with what is wrong with them.

use base::limits::{ARGUMENT_BYTES_MAX, COMMAND_BYTES_MAX, PATH_BYTES_MAX};
use sandbox::Command;

use crate::error::{Error, Result};

/// What each string costs beside its bytes: its zero byte and its place in the list.
const STRING_COST: usize = 1 + size_of::<usize>();

/// Whether the kernel takes such a command.
pub(crate) fn check(Command { argv, env, cwd, .. }: &Command) -> Result<()> {
    let Some(program) = argv.first() else { return Err(invalid("no command is given".to_owned())) };
    check_path("the program", program)?;
    for (number, argument) in argv.iter().enumerate() {
        check_text(&format!("argument {number} of the command"), argument, argument.len())?;
    }
    for (name, value) in env {
        check_variable(name, value)?;
    }
    check_directory(cwd)?;
    // The program's own path is among the strings, too.
    let arguments = argv.iter().chain([program]).map(|text| text.len() + STRING_COST);
    let bytes: usize =
        arguments.chain(env.iter().map(|(name, value)| name.len() + 1 + value.len() + STRING_COST)).sum();
    match bytes <= COMMAND_BYTES_MAX {
        true => Ok(()),
        false => Err(too_long(format!(
            "the command and its environment have {bytes} bytes: the kernel takes {COMMAND_BYTES_MAX} at most"
        ))),
    }
}

/// A path that may not be there, inside a sandbox or on the host.
pub(crate) fn check_path(what: &str, path: &str) -> Result<()> {
    if path.contains('\0') {
        return Err(invalid(format!("{what} has a zero byte")));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(invalid(format!("{what} has {} bytes: the kernel takes {PATH_BYTES_MAX} at most", path.len())));
    }
    Ok(())
}

fn check_directory(path: &str) -> Result<()> {
    check_path("the working directory", path)?;
    match path.starts_with('/') {
        true => Ok(()),
        false => Err(invalid("the working directory must be an absolute path".to_owned())),
    }
}

fn check_variable(name: &str, value: &str) -> Result<()> {
    if name.is_empty() || name.contains('=') {
        return Err(invalid("an environment variable needs a name without '='".to_owned()));
    }
    let shown: String = name.chars().take(40).collect();
    let what = format!("environment variable {shown:?}");
    check_text(&what, name, name.len() + 1 + value.len())?;
    check_text(&what, value, value.len())
}

fn check_text(what: &str, text: &str, bytes: usize) -> Result<()> {
    if text.contains('\0') {
        return Err(invalid(format!("{what} has a zero byte")));
    }
    match bytes <= ARGUMENT_BYTES_MAX {
        true => Ok(()),
        false => Err(too_long(format!("{what} has {bytes} bytes: the kernel takes {ARGUMENT_BYTES_MAX} at most"))),
    }
}

fn invalid(message: String) -> Error {
    Error::Invalid { message, hint: None }
}

fn too_long(message: String) -> Error {
    Error::Invalid { message, hint: Some("hand it over in a file or on standard input".to_owned()) }
}

#[cfg(test)]
mod tests {
    use sandbox::User;

    use super::*;

    fn command(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> Command {
        let argv = argv.iter().map(|text| (*text).to_owned()).collect();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Command { argv, env, cwd: cwd.to_owned(), tty: false, group: None, until_ns: None, user: User::PROGRAM }
    }

    #[test]
    fn what_the_kernel_takes_is_taken_to_the_byte() {
        let longest = "x".repeat(ARGUMENT_BYTES_MAX);
        check(&command(&["a", &longest, ""], &[("A", &longest[2..]), ("B", "")], "/")).unwrap();
        check(&command(&["a", "\u{1f}ü\n"], &[("ü", "=")], "/a b")).unwrap();
        // "a" twice, and fifteen of the rest.
        let argument = "x".repeat(COMMAND_BYTES_MAX / 16 - STRING_COST);
        let rest = "x".repeat(COMMAND_BYTES_MAX / 16 - 3 * STRING_COST - 2);
        let mut argv = vec!["a"];
        argv.extend([argument.as_str(); 15]);
        check(&command(&[&argv[..], &[&rest]].concat(), &[], "/")).unwrap();
        let more = format!("{rest}x");
        assert!(check(&command(&[&argv[..], &[&more]].concat(), &[], "/")).is_err());
    }

    #[test]
    fn what_it_does_not_take_is_refused_in_a_line() {
        let long = "x".repeat(ARGUMENT_BYTES_MAX + 1);
        let path = "x".repeat(PATH_BYTES_MAX + 1);
        for (argv, env, cwd) in [
            (&[][..], &[][..], "/"),
            (&["a\0"], &[], "/"),
            (&["a", "\0"], &[], "/"),
            (&["a", &long], &[], "/"),
            (&[&path], &[], "/"),
            (&["a"], &[("", "b")], "/"),
            (&["a"], &[("A=", "b")], "/"),
            (&["a"], &[("A\0", "b")], "/"),
            (&["a"], &[("A", "\0")], "/"),
            (&["a"], &[("A", &long[2..])], "/"),
            (&["a"], &[(&long, "")], "/"),
            (&["a"], &[], ""),
            (&["a"], &[], "a"),
            (&["a"], &[], "/\0"),
        ] {
            let Err(Error::Invalid { message, .. }) = check(&command(argv, env, cwd)) else { panic!("{argv:?}") };
            assert!(message.len() < 200, "{message}");
        }
    }
}
