//! Lists of a team's sandboxes.

use std::collections::BTreeMap;

use base::id::TeamId;
use db::{Fields, failed};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::{Sandbox, Sandboxes, record};
use crate::{ControlError, Order, Page, PageToken, Time, time::sql};

/// In which states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum States {
    /// In any.
    #[default]
    Any,
    /// Running ones only.
    Running,
    /// Paused ones only.
    Paused,
}

/// Which sandboxes. The default is all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Those that have all of these pairs.
    pub metadata: BTreeMap<String, String>,
    /// Those in one of these states.
    pub states: States,
    /// Those of this template: its id, or the name that they were made by.
    pub template: Option<String>,
    /// Those that were started at this time or later.
    pub started_after: Option<Time>,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedPage {
    /// In the order that was asked for.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next page begins, if there is one.
    pub next: Option<PageToken>,
    /// How many running sandboxes the filter finds, on all pages together.
    pub total_running: u64,
}

impl Sandboxes<'_> {
    /// A page of the sandboxes of a team, by the time of their start.
    pub async fn list(
        &self,
        team: &TeamId,
        filter: &Filter,
        order: Order,
        page: &Page,
    ) -> Result<ListedPage, ControlError> {
        page.check(order)?;
        let now = self.0.clock.now();
        let mut asked = Asked::new(team, filter);
        let count = format!("SELECT COUNT(*) AS used FROM sandboxes WHERE {} AND state = 'running'", asked.condition);
        let row = asked.query(&count).fetch_one(self.0.db.pool()).await.map_err(failed("count sandboxes"))?;
        let total_running = row.count("used")?;
        if let Some(after) = &page.after {
            asked.condition += " AND ";
            asked.condition += &order.after(("started_ms", "id"), asked.values.len() + 1);
            asked.values.extend([Value::Number(after.time.sql()), Value::Text(after.id.clone())]);
        }
        let (direction, limit) = (order.as_str(), page.limit + 1);
        let select = format!(
            "SELECT {} FROM sandboxes WHERE {} ORDER BY started_ms {direction}, id {direction} LIMIT {limit}",
            record::COLUMNS,
            asked.condition
        );
        let rows = asked.query(&select).fetch_all(self.0.db.pool()).await.map_err(failed("list sandboxes"))?;
        let mut sandboxes = rows.iter().map(|row| record::sandbox(row, now)).collect::<Result<Vec<_>, _>>()?;
        let next = page.cut(&mut sandboxes, order, |last| (last.started, last.id.to_string()));
        Ok(ListedPage { sandboxes, next, total_running })
    }

    /// The sandboxes of this server, and those of none, of all teams: for a server that brings them in line with its
    /// node.
    pub async fn of_this_server(&self) -> Result<Vec<Sandbox>, ControlError> {
        let mut connection = record::reader(self.0).await?;
        let now = self.0.clock.now();
        let mut found = of_server(&mut connection, &self.0.server, now).await?;
        found.extend(of_server(&mut connection, "", now).await?);
        Ok(found)
    }

    /// All sandboxes of all teams and servers.
    pub async fn all(&self) -> Result<Vec<Sandbox>, ControlError> {
        let select = format!("SELECT {} FROM sandboxes ORDER BY id", record::COLUMNS);
        let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(self.0.db.pool()).await;
        let rows = rows.map_err(failed("list all sandboxes"))?;
        let now = self.0.clock.now();
        Ok(rows.iter().map(|row| record::sandbox(row, now)).collect::<Result<_, _>>()?)
    }
}

/// The sandboxes of a server.
pub(crate) async fn of_server(
    connection: &mut AnyConnection,
    server: &str,
    now: Time,
) -> Result<Vec<Sandbox>, ControlError> {
    let select = format!("SELECT {} FROM sandboxes WHERE server = $1 ORDER BY id", record::COLUMNS);
    let rows = sqlx::query(AssertSqlSafe(select)).bind(server).fetch_all(connection).await;
    let rows = rows.map_err(failed("list the sandboxes of a server"))?;
    Ok(rows.iter().map(|row| record::sandbox(row, now)).collect::<Result<_, _>>()?)
}

/// A condition and its parameters.
struct Asked {
    condition: String,
    values: Vec<Value>,
}

enum Value {
    Text(String),
    Number(i64),
}

impl Asked {
    fn new(team: &TeamId, filter: &Filter) -> Self {
        let mut asked = Self {
            condition: "team = $1 AND doing <> 'killing'".to_owned(),
            values: vec![Value::Text(team.to_string())],
        };
        for (key, value) in &filter.metadata {
            let at = asked.add(Value::Text(record::pair_hash(key, value)));
            asked.condition += &format!(
                " AND EXISTS (SELECT 1 FROM sandbox_metadata
                WHERE sandbox_metadata.sandbox = sandboxes.id AND pair = ${at})"
            );
        }
        asked.condition += match filter.states {
            States::Any => "",
            States::Running => " AND state = 'running'",
            States::Paused => " AND state = 'paused'",
        };
        if let Some(template) = &filter.template {
            // PostgreSQL takes no zero bytes, and no template's name has any.
            let at = asked.add(Value::Text(template.replace('\0', "\u{fffd}")));
            asked.condition += &format!(" AND (template = ${at} OR alias = ${at})");
        }
        if let Some(after) = filter.started_after {
            let at = asked.add(Value::Number(sql(after.ms())));
            asked.condition += &format!(" AND started_ms >= ${at}");
        }
        asked
    }

    /// Adds a parameter, and returns its number.
    fn add(&mut self, value: Value) -> usize {
        self.values.push(value);
        self.values.len()
    }

    fn query(&self, statement: &str) -> sqlx::query::Query<'static, sqlx::Any, sqlx::any::AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
        self.values.iter().fold(query, |query, value| match value {
            Value::Text(text) => query.bind(text.clone()),
            Value::Number(number) => query.bind(*number),
        })
    }
}
