//! Paths as clients give them: absolute, relative to the user's directory, or with `~`.

use crate::{Code, Failure, Home, Outcome};

/// Linux takes no longer ones.
const BYTES_MAX: usize = base::limits::PATH_BYTES_MAX;

/// Makes a path absolute. `.` and `..` are resolved as text, as E2B does; links are left to the kernel.
pub fn resolve(path: &str, home: &Home) -> Outcome<String> {
    if path.contains('\0') {
        return Err(Failure::new(Code::InvalidArgument, "the path has a zero byte"));
    }
    let absolute = match path.strip_prefix('~') {
        Some("") => home.home.clone(),
        Some(rest) if rest.starts_with('/') => format!("{}{rest}", home.home),
        // `~name` is the home of another user, which a shell would look up.
        Some(_) => {
            let message = format!("the path {path:?} begins with the home of another user: give it in full");
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        None if path.starts_with('/') => path.to_owned(),
        None => format!("{}/{path}", home.cwd),
    };
    if absolute.len() > BYTES_MAX {
        let message = format!("the path has {} bytes: {BYTES_MAX} are the most", absolute.len());
        return Err(Failure::new(Code::InvalidArgument, message));
    }
    Ok(clean(&absolute))
}

fn clean(absolute: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in absolute.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_where_the_user_is() {
        let home = Home { home: "/home/user".into(), cwd: "/srv".into() };
        for (given, resolved) in [
            ("a", "/srv/a"),
            ("", "/srv"),
            ("~", "/home/user"),
            ("~/a b", "/home/user/a b"),
            ("/x/../y/./z/", "/y/z"),
            ("../../..", "/"),
            ("/", "/"),
            ("a~", "/srv/a~"),
        ] {
            assert_eq!(resolve(given, &home).unwrap(), resolved, "{given}");
        }
    }

    #[test]
    fn paths_that_no_kernel_takes_are_refused() {
        let home = Home { home: "/h".into(), cwd: "/h".into() };
        for wrong in ["a\0b".to_owned(), "~root/a".to_owned(), "x".repeat(BYTES_MAX + 1)] {
            assert_eq!(resolve(&wrong, &home).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
