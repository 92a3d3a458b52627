//! Users of a sandbox: who has a name there.

use std::{path::PathBuf, sync::Arc};

use base::{
    id::SandboxId,
    limits::{HAND_NAMES_BYTES_MAX, IDS_PER_SANDBOX},
};
use model::TemplateSpec;
use sandbox::{User, Users};

use super::Node;
use crate::error::{Context, Error, Result};

/// The user of those who name none. It is uid 1000 in every sandbox, whatever `/etc/passwd` says.
const USER: &str = "user";
const ROOT: &str = "root";

/// Longest name, in bytes: as useradd(8) allows, with room.
const NAME_BYTES_MAX: usize = 256;

/// A user of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its home directory inside.
    pub home: String,
    /// Its numbers inside.
    pub ids: User,
}

impl Account {
    /// The default user, as which programs run.
    pub(crate) fn program() -> Self {
        Self::new(USER, "/home/user", User::PROGRAM)
    }

    fn new(name: &str, home: &str, ids: User) -> Self {
        Self { name: name.to_owned(), home: home.to_owned(), ids }
    }
}

impl Node {
    /// Who `name` is in a sandbox; none: the user of its template, else the default one. Names beside `user` and `root` are looked up in the sandbox, by its own files.
    pub async fn account(self: &Arc<Self>, id: &SandboxId, name: Option<&str>) -> Result<Account> {
        let of_template = self.user_of_template(id);
        match name.or(of_template.as_deref()) {
            None | Some(USER) => Ok(Account::program()),
            Some(name) if self.is_for_program_only(id)? => {
                Err(Error::OneUser { user: name.escape_debug().to_string() })
            }
            Some(ROOT) => Ok(Account::new(ROOT, "/root", User::ROOT)),
            Some(name) => self.look_up_with_group(id, name).await,
        }
    }

    async fn look_up_with_group(self: &Arc<Self>, id: &SandboxId, text: &str) -> Result<Account> {
        let asked = Asked::of(text);
        let account = match asked.known()? {
            Some(account) => account,
            None => self.look_up(id, asked.user).await?,
        };
        asked.complete(account)
    }

    /// The working directory that the template has for this user, if it has one: `/` is none.
    pub fn directory_of(&self, id: &SandboxId, account: &Account) -> Option<String> {
        let state = self.state();
        let TemplateSpec { cwd, user, .. } = state.spec_of(state.sandbox(id).ok()?).ok()?;
        let is_its_user = user.as_deref().unwrap_or(USER) == account.name;
        Some(cwd).filter(|cwd| is_its_user && cwd != "/")
    }

    fn user_of_template(&self, id: &SandboxId) -> Option<String> {
        let state = self.state();
        // The sandbox of a template that is being built has no record.
        state.spec_of(state.sandbox(id).ok()?).ok()?.user
    }

    fn is_for_program_only(&self, id: &SandboxId) -> Result<bool> {
        Ok(Users::of(&self.state().sandbox(id)?.layers) == Users::ProgramOnly)
    }

    async fn look_up(self: &Arc<Self>, id: &SandboxId, name: &str) -> Result<Account> {
        let none = || Error::NoUser { user: name.escape_debug().to_string() };
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.contains([':', '\n', '\0']) {
            return Err(none());
        }
        let found = self.hand_of(id, &User::PROGRAM).await?.account(name).await;
        match found {
            Ok(hands::Account { uid, gid, groups, home }) => Ok(Account::new(name, &home, User { uid, gid, groups })),
            Err(error) if error.problem() == Some(&hands::Problem::NotFound) => Err(none()),
            Err(error) => Err(std::io::Error::other(error)).doing("look up a user of the sandbox"),
        }
    }
}

/// Whom the program of a template runs as, by the files of its root with these layers.
pub(super) fn program_account(spec: &TemplateSpec, layers: &[PathBuf]) -> Result<Account> {
    let Some(text) = spec.user.as_deref().filter(|user| *user != USER) else { return Ok(Account::program()) };
    if Users::of(layers) == Users::ProgramOnly {
        return Err(Error::OneUser { user: text.escape_debug().to_string() });
    }
    let asked = Asked::of(text);
    let account = match asked.known()? {
        Some(account) => account,
        None => in_layers(layers, asked.user)?,
    };
    asked.complete(account)
}

fn in_layers(layers: &[PathBuf], name: &str) -> Result<Account> {
    let read = |file| sandbox::read_of_image(layers, "etc", file, HAND_NAMES_BYTES_MAX).unwrap_or_default();
    let [users, groups] = ["passwd", "group"].map(|file| String::from_utf8_lossy(&read(file)).into_owned());
    match hands::account_in(name, &users, &groups) {
        Some(hands::Account { uid, gid, groups, home }) => Ok(Account::new(name, &home, User { uid, gid, groups })),
        None => Err(Error::NoUser { user: name.escape_debug().to_string() }),
    }
}

/// `USER`, `UID`, or either with `:GROUP`, as images and Dockerfiles say it.
struct Asked<'a> {
    text: &'a str,
    user: &'a str,
    group: Option<&'a str>,
}

impl<'a> Asked<'a> {
    fn of(text: &'a str) -> Self {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        Self { text, user, group }
    }

    /// One that no file has to name.
    fn known(&self) -> Result<Option<Account>> {
        Ok(match (number(self.user)?, self.user) {
            (Some(uid), _) => Some(Account::new(self.user, "/", User { uid, gid: uid, groups: Vec::new() })),
            (None, USER) => Some(Account::program()),
            (None, ROOT) => Some(Account::new(ROOT, "/root", User::ROOT)),
            (None, _) => None,
        })
    }

    fn complete(&self, mut account: Account) -> Result<Account> {
        match self.group {
            None => {}
            Some(group) if group == self.user => {}
            Some(ROOT) => account.ids.gid = 0,
            Some(group) => {
                let message = || format!("{}: the group is no number", self.text.escape_debug());
                let hint = || Some("give the group as a number, or leave it out".to_owned());
                account.ids.gid = number(group)?.ok_or_else(|| Error::Invalid { message: message(), hint: hint() })?;
            }
        }
        self.text.clone_into(&mut account.name);
        Ok(account)
    }
}

/// A number of a user or group of a sandbox; none: it is a name.
fn number(text: &str) -> Result<Option<u32>> {
    match text.parse::<u32>() {
        Ok(number) if number < IDS_PER_SANDBOX => Ok(Some(number)),
        Ok(number) => {
            let message = format!("{number} is no user or group of a sandbox: they are below {IDS_PER_SANDBOX}");
            Err(Error::Invalid { message, hint: None })
        }
        Err(_) => Ok(None),
    }
}
