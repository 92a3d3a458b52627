//! Who a user of the sandbox is, by its own `/etc/passwd` and `/etc/group` (passwd(5), group(5)).

use base::limits::{GROUPS_MAX, IDS_PER_SANDBOX};

use super::names::read;
use crate::protocol::{Account, Problem};

/// The first account of this name, with the groups that name it.
pub(super) fn find(name: &str) -> Result<Account, Problem> {
    let users = read("/etc/passwd".as_ref()).ok_or(Problem::NotFound)?;
    let groups = read("/etc/group".as_ref()).unwrap_or_default();
    account_in(name, &users, &groups).ok_or(Problem::NotFound)
}

/// The account that `text` names in the texts of both files: a name or number, with `:GROUP` or `:GID` or without. As Docker has it, a number needs
/// no entry: its group is root's then, and its home `/`; and with a group named, others do not count.
pub fn account_in(text: &str, users: &str, groups: &str) -> Option<Account> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let mut account = match entry(users, |fields| !user.is_empty() && fields[0] == user) {
        Some(fields) => from_entry(&fields, groups)?,
        None => {
            let uid = id(user)?;
            let numbered = entry(users, |fields| fields.get(2).is_some_and(|field| id(field) == Some(uid)));
            let found = numbered.and_then(|fields| from_entry(&fields, groups));
            found.unwrap_or_else(|| Account { uid, gid: 0, groups: Vec::new(), home: "/".to_owned() })
        }
    };
    if let Some(group) = group {
        let named = entry(groups, |fields| !group.is_empty() && fields[0] == group);
        account.gid = match named {
            Some(fields) => id(fields.get(2)?)?,
            None => id(group)?,
        };
        account.groups.clear();
    }
    Some(account)
}

/// The first line whose fields are as wanted.
fn entry(text: &str, is_wanted: impl Fn(&[&str]) -> bool) -> Option<Vec<&str>> {
    text.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| is_wanted(fields))
}

fn from_entry(fields: &[&str], groups: &str) -> Option<Account> {
    let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
    let (uid, gid) = (id(uid)?, id(gid)?);
    let others = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, group, members] = fields[..] else { return None };
        members.split(',').any(|member| member == name).then(|| id(group)).flatten()
    });
    let mut others: Vec<u32> = others.filter(|group| *group != gid).take(GROUPS_MAX).collect();
    others.sort_unstable();
    others.dedup();
    let home = if home.starts_with('/') { home } else { "/" };
    Some(Account { uid, gid, groups: others, home: home.to_owned() })
}

/// One that the sandbox's user namespace has.
fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id < IDS_PER_SANDBOX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\nbob:x:1001:1001:Bob,,,:/home/bob:/bin/sh\n\
        bobby:x:1002:1002::/srv:/bin/sh\nfar:x:70000:1::/:/bin/sh\nodd:x:7\nlost:x:8:8::nowhere:\nbob:x:5:5::/:\n";
    const GROUPS: &str = "bob:x:1001:\nsudo:x:27:bobby,bob\nusers:x:100:bob\nsame:x:100:bob\nhuge:x:99999:bob\nx:x\n";

    #[test]
    fn an_account_has_the_groups_that_name_it() {
        let account = |name| account_in(name, USERS, GROUPS);
        let bob = Account { uid: 1001, gid: 1001, groups: vec![27, 100], home: "/home/bob".into() };
        assert_eq!(account("bob"), Some(bob));
        assert_eq!(account("bobby").unwrap().groups, [27]);
        assert_eq!(account("root").map(|root| (root.uid, root.home)), Some((0, "/root".into())));
        assert_eq!(account("lost").unwrap().home, "/");
    }

    #[test]
    fn numbers_and_groups_count_as_with_docker() {
        let account = |text| account_in(text, USERS, GROUPS).unwrap();
        let ids = |text| (account(text).uid, account(text).gid, account(text).groups);
        assert_eq!(account("1001"), account("bob"));
        assert_eq!(ids("4242"), (4242, 0, vec![]));
        assert_eq!(ids("bob:sudo"), (1001, 27, vec![]));
        assert_eq!((ids("bob:5"), ids("4242:users")), ((1001, 5, vec![]), (4242, 100, vec![])));
    }

    #[test]
    fn what_is_no_account_is_not_found() {
        for name in ["far", "odd", "bo", "", "nobody", "root:none", "bob:", ":27", "70000", "1:70000", "-1"] {
            assert_eq!(account_in(name, USERS, GROUPS), None, "{name}");
        }
    }

    #[test]
    fn groups_are_bounded() {
        let many: String = (0..2 * GROUPS_MAX).map(|group| format!("g{group}:x:{group}:bob\n")).collect();
        assert_eq!(account_in("bob", USERS, &many).unwrap().groups.len(), GROUPS_MAX);
    }
}
