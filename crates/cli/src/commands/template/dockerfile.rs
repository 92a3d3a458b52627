//! From a Dockerfile to the steps of a recipe.

mod words;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail, ensure};
use api::RecipeStep;
use parse_dockerfile::{Command, Flag, Instruction, Source};

use self::words::{Variables, expand, split};
use super::context::Context;

/// What Docker has where nothing says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a Dockerfile says.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) steps: Vec<RecipeStep>,
    pub(super) entrypoint: Vec<String>,
    pub(super) command: Vec<String>,
    /// TCP ports that its program listens on.
    pub(super) ports: Vec<u16>,
    /// Instructions that change nothing here, with their lines.
    pub(super) ignored: Vec<String>,
}

/// Its text, parsed.
pub(super) struct Dockerfile<'a> {
    text: &'a str,
    parsed: parse_dockerfile::Dockerfile<'a>,
    arguments: &'a BTreeMap<String, String>,
}

impl<'a> Dockerfile<'a> {
    /// `arguments`: what is given for its `ARG`s.
    pub(super) fn parse(text: &'a str, arguments: &'a BTreeMap<String, String>) -> Result<Self> {
        let parsed = parse_dockerfile::parse(text)?;
        let stages = parsed.stages().count();
        ensure!(stages > 0, "it has no FROM");
        ensure!(
            stages == 1,
            "it has {stages} stages (FROM), and one is supported: build what the others make before, and COPY it"
        );
        Ok(Self { text, parsed, arguments })
    }

    /// The name behind `FROM`.
    pub(super) fn origin(&self) -> Result<String> {
        let mut variables = Variables::default();
        for instruction in &self.parsed.instructions {
            match instruction {
                Instruction::Arg(arg) => self.argument(&arg.arguments.value, &mut variables)?,
                Instruction::From(from) => {
                    let name = expand(&from.image.value, &variables)?;
                    ensure!(name != "scratch", "FROM scratch is not supported: begin with an image or a template");
                    return Ok(name);
                }
                _ => {}
            }
        }
        bail!("it has no FROM")
    }

    /// Its steps. `env` and `user` are those of what it begins with; files come from `context`, whose archive is `archive`.
    pub(super) fn read(&self, env: &[(String, String)], context: &Context, archive: &Path) -> Result<Read> {
        let mut reading = Reading {
            of: self,
            context,
            archive: archive.to_owned(),
            variables: Variables::default(),
            given: Vec::new(),
            read: Read::default(),
        };
        reading.variables.set("PATH", PATH);
        env.iter().for_each(|(name, value)| reading.variables.set(name, value));
        let mut instructions = self.parsed.instructions.iter();
        // What comes before FROM holds there only.
        instructions.by_ref().find(|instruction| matches!(instruction, Instruction::From(_)));
        for instruction in instructions {
            let line = self.line(instruction);
            reading.take(instruction, line).map_err(|error| error.context(format!("line {line}")))?;
        }
        Ok(reading.read)
    }

    /// `NAME` or `NAME=DEFAULT`: what is given counts.
    fn argument(&self, text: &str, variables: &mut Variables) -> Result<()> {
        for word in split(text, variables)? {
            let (name, default) = word.split_once('=').map_or((&*word, None), |(name, value)| (name, Some(value)));
            let given = self.arguments.get(name).map(String::as_str);
            if let Some(value) = given.or(default) {
                variables.set(name, value);
            }
        }
        Ok(())
    }

    fn line(&self, instruction: &Instruction<'_>) -> usize {
        let begin = span(instruction);
        self.text.get(..begin).unwrap_or_default().lines().count()
            + usize::from(self.text[..begin].ends_with('\n') || begin == 0)
    }
}

struct Reading<'a, 'b> {
    of: &'a Dockerfile<'b>,
    context: &'a Context,
    archive: PathBuf,
    variables: Variables,
    /// `ARG`s of the stage, which commands see.
    given: Vec<String>,
    read: Read,
}

impl Reading<'_, '_> {
    fn take(&mut self, instruction: &Instruction<'_>, line: usize) -> Result<()> {
        match instruction {
            Instruction::Arg(arg) => {
                self.of.argument(&arg.arguments.value, &mut self.variables)?;
                for word in split(&arg.arguments.value, &self.variables)? {
                    self.given.push(word.split('=').next().unwrap_or_default().to_owned());
                }
            }
            Instruction::Env(env) => self.env(&env.arguments.value)?,
            Instruction::Workdir(workdir) => {
                let path = expand(&workdir.arguments.value, &self.variables)?;
                self.read.steps.push(RecipeStep::Directory(path));
            }
            Instruction::User(user) => {
                let user = expand(&user.arguments.value, &self.variables)?;
                self.read.steps.push(RecipeStep::User(user));
            }
            Instruction::Run(run) => {
                if let Some(flag) = run.options.first() {
                    bail!("RUN --{} is not supported", flag.name.value);
                }
                let mut command = shell(&run.arguments);
                for document in &run.here_docs {
                    command = here(&command, &document.value);
                }
                self.read.steps.push(RecipeStep::Run { command, env: self.given() });
            }
            Instruction::Copy(copy) => self.copy("COPY", &copy.options, &copy.src, &copy.dest.value)?,
            Instruction::Add(add) => self.copy("ADD", &add.options, &add.src, &add.dest.value)?,
            Instruction::Expose(expose) => {
                for port in &expose.arguments {
                    self.expose(&expand(&port.value, &self.variables)?)?;
                }
            }
            Instruction::Cmd(cmd) => self.read.command = program(&cmd.arguments),
            Instruction::Entrypoint(entrypoint) => {
                self.read.entrypoint = program(&entrypoint.arguments);
                // As in Docker: it is of another program.
                self.read.command.clear();
            }
            Instruction::Shell(_) => bail!("SHELL is not supported: commands run by /bin/bash, or /bin/sh"),
            Instruction::From(_) => bail!("it has more than one FROM"),
            other => {
                let text = self.of.text.get(span(other)..).unwrap_or_default();
                let name = text.split_whitespace().next().unwrap_or_default().to_uppercase();
                self.read.ignored.push(format!("{name} (line {line})"));
            }
        }
        Ok(())
    }

    fn env(&mut self, text: &str) -> Result<()> {
        let words = split(text, &self.variables)?;
        let pairs = match words.first() {
            // `ENV NAME all the rest`, as it was written once.
            Some(first) if !first.contains('=') => {
                let rest = text.trim_start().split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim());
                ensure!(!rest.is_empty(), "ENV {first} has no value");
                vec![(first.clone(), expand(rest, &self.variables)?)]
            }
            _ => {
                let pair =
                    |word: &String| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
                let pairs: Option<Vec<_>> = words.iter().map(pair).collect();
                match pairs {
                    Some(pairs) if !pairs.is_empty() => pairs,
                    _ => bail!("ENV needs NAME=VALUE"),
                }
            }
        };
        pairs.iter().for_each(|(name, value)| self.variables.set(name, value));
        self.read.steps.push(RecipeStep::Env(pairs));
        Ok(())
    }

    /// `ARG`s are variables of commands, and of nothing else.
    fn given(&self) -> Vec<(String, String)> {
        let value = |name: &String| Some((name.clone(), self.variables.get(name)?.to_owned()));
        self.given.iter().filter_map(value).collect()
    }

    fn copy(&mut self, word: &str, flags: &[Flag<'_>], sources: &[Source<'_>], dest: &str) -> Result<()> {
        let (mut owner, mut mode) = (None, None);
        for flag in flags {
            let value = flag.value.as_ref().map(|value| expand(&value.value, &self.variables)).transpose()?;
            match (&*flag.name.value, value) {
                ("chown", Some(value)) => owner = Some(value),
                ("chmod", Some(value)) => match u32::from_str_radix(&value, 8) {
                    Ok(bits) if bits <= 0o7777 => mode = Some(bits),
                    _ => bail!("{word} --chmod={value}: give an octal number, such as 755"),
                },
                // Layers are copies anyway.
                ("link", _) => {}
                (other, _) => bail!("{word} --{other} is not supported"),
            }
        }
        let mut target = expand(dest, &self.variables)?;
        if sources.len() > 1 && !target.ends_with('/') {
            target.push('/');
        }
        for source in sources {
            let Source::Path(path) = source else { bail!("{word} <<... is not supported: RUN cat <<... is") };
            let source = expand(&path.value, &self.variables)?;
            ensure!(!source.contains("://"), "{word} {source}: files are not fetched; RUN curl does that");
            ensure!(word != "ADD" || !is_archive(&source), "ADD {source} would unpack it: use COPY, and RUN tar -xf");
            let source = source.trim_start_matches('/').to_owned();
            let source = if source.is_empty() { ".".to_owned() } else { source };
            let key = self.context.key(&source)?;
            let (archive, target, owner) = (self.archive.clone(), target.clone(), owner.clone());
            self.read.steps.push(RecipeStep::Copy { archive, key, source, target, owner, mode });
        }
        Ok(())
    }

    fn expose(&mut self, text: &str) -> Result<()> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let first = port.split('-').next().unwrap_or_default();
        match first.parse() {
            Ok(port) if port > 0 && protocol.eq_ignore_ascii_case("tcp") => self.read.ports.push(port),
            Ok(_) => {}
            Err(_) => bail!("EXPOSE {text}: a port is a number from 1 to 65535"),
        }
        Ok(())
    }
}

/// Where an instruction begins.
fn span(instruction: &Instruction<'_>) -> usize {
    match instruction {
        Instruction::Add(it) => it.add.span.start,
        Instruction::Arg(it) => it.arg.span.start,
        Instruction::Cmd(it) => it.cmd.span.start,
        Instruction::Copy(it) => it.copy.span.start,
        Instruction::Entrypoint(it) => it.entrypoint.span.start,
        Instruction::Env(it) => it.env.span.start,
        Instruction::Expose(it) => it.expose.span.start,
        Instruction::From(it) => it.from.span.start,
        Instruction::Healthcheck(it) => it.healthcheck.span.start,
        Instruction::Label(it) => it.label.span.start,
        Instruction::Maintainer(it) => it.maintainer.span.start,
        Instruction::Onbuild(it) => it.onbuild.span.start,
        Instruction::Run(it) => it.run.span.start,
        Instruction::Shell(it) => it.shell.span.start,
        Instruction::Stopsignal(it) => it.stopsignal.span.start,
        Instruction::User(it) => it.user.span.start,
        Instruction::Volume(it) => it.volume.span.start,
        Instruction::Workdir(it) => it.workdir.span.start,
        _ => 0,
    }
}

/// A shell command of either form. Line ends behind a backslash are for the shell, too.
fn shell(command: &Command<'_>) -> String {
    match command {
        Command::Exec(words) => words.value.iter().map(|word| quoted(&word.value)).collect::<Vec<_>>().join(" "),
        Command::Shell(text) => text.value.to_owned(),
        _ => String::new(),
    }
}

/// A command with a here-document: without one word more it is a script.
fn here(command: &str, document: &str) -> String {
    if command.trim().is_empty() { document.to_owned() } else { format!("{command}\n{document}") }
}

fn program(command: &Command<'_>) -> Vec<String> {
    match command {
        Command::Exec(words) => words.value.iter().map(|word| word.value.to_string()).collect(),
        shell_form => vec!["/bin/sh".to_owned(), "-c".to_owned(), shell(shell_form)],
    }
}

/// As one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn is_archive(name: &str) -> bool {
    let ends = [".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.zst"];
    ends.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, given: &[(&str, &str)]) -> Result<Read> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("src")).unwrap();
        std::fs::write(folder.path().join("src/a.py"), "a").unwrap();
        let context = Context::of(folder.path())?;
        let arguments = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let file = Dockerfile::parse(text, &arguments)?;
        file.origin()?;
        file.read(&[("HOME".to_owned(), "/root".to_owned())], &context, Path::new("/archive"))
    }

    #[test]
    fn instructions_become_steps() {
        let text = r#"
ARG TAG=1
FROM python:$TAG
ARG WHO=me
ENV A=1 B="two words" C=$HOME/x
WORKDIR /app
USER app:app
COPY --chown=1000:1000 --chmod=755 src /app/src
RUN echo $WHO && \
    true
EXPOSE 8080/tcp 9/udp
LABEL x=y
ENTRYPOINT ["python", "-m"]
CMD ["http.server"]
"#;
        let read = read(text, &[("WHO", "it's")]).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read.steps[0], RecipeStep::Env(vec![pair("A", "1"), pair("B", "two words"), pair("C", "/root/x")]));
        assert_eq!(read.steps[1], RecipeStep::Directory("/app".into()));
        assert_eq!(read.steps[2], RecipeStep::User("app:app".into()));
        let RecipeStep::Copy { source, target, owner, mode, .. } = &read.steps[3] else { panic!("{:?}", read.steps) };
        assert_eq!(
            (&**source, &**target, owner.as_deref(), *mode),
            ("src", "/app/src", Some("1000:1000"), Some(0o755))
        );
        let RecipeStep::Run { command, env } = &read.steps[4] else { panic!("{:?}", read.steps) };
        assert!(command.starts_with("echo $WHO && "), "{command}");
        assert_eq!(env, &[pair("WHO", "it's")]);
        assert_eq!((read.entrypoint, read.command), (vec!["python".into(), "-m".into()], vec!["http.server".into()]));
        assert_eq!(read.ports, [8080]);
        assert_eq!(read.ignored, ["LABEL (line 12)"]);
    }

    #[test]
    fn here_documents_are_scripts() {
        let read = read("FROM x\nRUN <<EOF\necho a\necho b\nEOF\n", &[]).unwrap();
        let RecipeStep::Run { command, .. } = &read.steps[0] else { panic!("{:?}", read.steps) };
        assert!(command.contains("echo a\necho b"), "{command}");
    }

    #[test]
    fn refusals_name_the_line() {
        for (text, says) in [
            ("FROM x\nCOPY --from=y a b\n", "line 2"),
            ("FROM x\n\nADD https://example.com/a /b\n", "line 3"),
            ("FROM x\nCOPY absent /b\n", "absent"),
            ("FROM x\nADD a.tar /b\n", "COPY"),
            ("FROM x\nFROM y\n", "2 stages"),
            ("FROM x\nENV $PATH\n", "no value"),
            ("FROM x\nCOPY src/**/*.py /b\n", "**"),
            ("FROM scratch\n", "scratch"),
            ("RUN x\n", ""),
            ("FROM x\nRUN --mount=type=cache x\n", "--mount"),
        ] {
            let error = format!("{:#}", read(text, &[]).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
