//! Users of a sandbox: who has a name there.

use std::{path::PathBuf, sync::Arc};

use base::{id::SandboxId, limits::HAND_NAMES_BYTES_MAX};
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

    /// `text`: what it was asked for by.
    fn found(text: &str, found: hands::Account) -> Self {
        let hands::Account { uid, gid, groups, home } = found;
        let name = text.split(':').next().unwrap_or_default();
        Self::new(name, &home, User { uid, gid, groups })
    }

    fn new(name: &str, home: &str, ids: User) -> Self {
        Self { name: name.to_owned(), home: home.to_owned(), ids }
    }
}

impl Node {
    /// Who `name` is in a sandbox; none: the user of its template, else the default one. `USER` or `UID`, either with `:GROUP`: others than `user` and `root` are looked up in the sandbox, by its own files.
    pub async fn account(self: &Arc<Self>, id: &SandboxId, name: Option<&str>) -> Result<Account> {
        let of_template = self.user_of_template(id);
        match name.or(of_template.as_deref()) {
            None | Some(USER) => Ok(Account::program()),
            Some(name) if self.is_for_program_only(id)? => {
                Err(Error::OneUser { user: name.escape_debug().to_string() })
            }
            Some(ROOT) => Ok(Account::new(ROOT, "/root", User::ROOT)),
            Some(name) => self.look_up(id, name).await,
        }
    }

    /// The working directory that the template has for this user, if it has one: `/` is none.
    pub fn directory_of(&self, id: &SandboxId, account: &Account) -> Option<String> {
        let state = self.state();
        let TemplateSpec { cwd, user, .. } = state.spec_of(state.sandbox(id).ok()?).ok()?;
        let is_its_user = user.as_deref().unwrap_or(USER).split(':').next() == Some(account.name.as_str());
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

    async fn look_up(self: &Arc<Self>, id: &SandboxId, text: &str) -> Result<Account> {
        let none = || Error::NoUser { user: text.escape_debug().to_string() };
        if !(1..=NAME_BYTES_MAX).contains(&text.len()) || text.contains(['\n', '\0']) {
            return Err(none());
        }
        let found = self.hand_of(id, &User::PROGRAM).await?.account(&by_files(text)).await;
        match found {
            Ok(found) => Ok(Account::found(text, found)),
            Err(error) if error.problem() == Some(&hands::Problem::NotFound) => Err(none()),
            Err(error) => Err(std::io::Error::other(error)).doing("look up a user of the sandbox"),
        }
    }
}

/// What its files are asked for: `user` is uid 1000, whatever they say, and `root` needs no entry.
fn by_files(text: &str) -> String {
    let (user, group) = text.split_once(':').map_or((text, ""), |(user, _)| (user, &text[user.len()..]));
    match user {
        USER => format!("{}{group}", User::PROGRAM.uid),
        ROOT => format!("0{group}"),
        user => format!("{user}{group}"),
    }
}

/// Whom the program of a template runs as, by the files of its root with these layers.
pub(super) fn program_account(spec: &TemplateSpec, layers: &[PathBuf]) -> Result<Account> {
    let text = spec.user.as_deref().unwrap_or(USER);
    if text == USER {
        return Ok(Account::program());
    }
    if Users::of(layers) == Users::ProgramOnly {
        return Err(Error::OneUser { user: text.escape_debug().to_string() });
    }
    if text == ROOT {
        return Ok(Account::new(ROOT, "/root", User::ROOT));
    }
    let read = |file| sandbox::read_of_image(layers, "etc", file, HAND_NAMES_BYTES_MAX).unwrap_or_default();
    let [users, groups] = ["passwd", "group"].map(|file| String::from_utf8_lossy(&read(file)).into_owned());
    let found = hands::account_in(&by_files(text), &users, &groups);
    let found = found.ok_or_else(|| Error::NoUser { user: text.escape_debug().to_string() })?;
    Ok(Account::found(text, found))
}
