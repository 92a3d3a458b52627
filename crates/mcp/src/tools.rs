//! The tools: names, descriptions and schemas for agents, and the calls behind them.

mod files;
mod programs;
mod sandboxes;

use std::sync::Arc;

use rmcp::{
    handler::server::common::schema_for_type,
    model::{JsonObject, Tool, ToolAnnotations},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, remote::Remote};

/// All tools, in the order in which agents see them.
pub(crate) fn all() -> Vec<Tool> {
    vec![
        changing::<sandboxes::Create>(
            "create_sandbox",
            "Create an isolated Linux sandbox and get its id. Template `base` has bash, Python, Node.js and git; \
             `python` and `node` have a warm interpreter for run_code, too.",
        ),
        reading::<sandboxes::List>("list_sandboxes", "List the running and paused sandboxes, the newest first."),
        changing::<programs::RunCommand>(
            "run_command",
            "Run a command with bash in a sandbox and get its exit code and output. With `background` it returns at \
             once with the pid: use that for servers.",
        ),
        changing::<programs::RunCode>(
            "run_code",
            "Run code in the warm interpreter of a sandbox of template `python` or `node`. Variables stay for the next \
             call, and forks of the sandbox have them, too. The value of a last expression is printed.",
        ),
        reading::<files::Read>("read_file", "Read a file of a sandbox, or a part of it."),
        changing::<files::Write>("write_file", "Write a file in a sandbox. Missing directories are made."),
        reading::<files::List>("list_files", "List a directory of a sandbox."),
        changing::<sandboxes::Fork>(
            "fork_sandbox",
            "Copy a sandbox with its memory and files: each copy goes on from this instant. Good for several attempts \
             from one state. The sandbox may run or be paused. Commands must have ended.",
        ),
        changing::<sandboxes::Snapshot>(
            "snapshot_sandbox",
            "Keep the memory and files of a sandbox. create_sandbox takes the name or the id as its template.",
        ),
        changing::<sandboxes::Kill>("kill_sandbox", "Remove a sandbox with all that is in it."),
    ]
}

/// Calls one of them.
pub(crate) async fn call(remote: &Remote, name: &str, arguments: JsonObject) -> Result<Value, Error> {
    match name {
        "create_sandbox" => sandboxes::create(remote, parse(arguments)?).await,
        "list_sandboxes" => sandboxes::list(remote, parse(arguments)?).await,
        "run_command" => programs::run_command(remote, parse(arguments)?).await,
        "run_code" => programs::run_code(remote, parse(arguments)?).await,
        "read_file" => files::read(remote, parse(arguments)?).await,
        "write_file" => files::write(remote, parse(arguments)?).await,
        "list_files" => files::list(remote, parse(arguments)?).await,
        "fork_sandbox" => sandboxes::fork(remote, parse(arguments)?).await,
        "snapshot_sandbox" => sandboxes::snapshot(remote, parse(arguments)?).await,
        "kill_sandbox" => sandboxes::kill(remote, parse(arguments)?).await,
        _ => Err(Error::NoTool(name.to_owned())),
    }
}

fn changing<A: JsonSchema + 'static>(name: &'static str, description: &'static str) -> Tool {
    let hints = ToolAnnotations::new().read_only(false).destructive(name == "kill_sandbox").open_world(false);
    Tool::new(name, description, schema::<A>()).with_annotations(hints)
}

fn reading<A: JsonSchema + 'static>(name: &'static str, description: &'static str) -> Tool {
    Tool::new(name, description, schema::<A>())
        .with_annotations(ToolAnnotations::new().read_only(true).open_world(false))
}

/// The schema of a tool's arguments, without what the tool's own name and description say. Some clients want
/// `properties` even if there are none.
fn schema<A: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = schema_for_type::<A>().as_ref().clone();
    schema.remove("title");
    schema.remove("description");
    schema.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(schema)
}

fn parse<A: DeserializeOwned>(arguments: JsonObject) -> Result<A, Error> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| Error::Arguments(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    fn nowhere() -> Remote {
        let address = Address { api: "http://127.0.0.1:1".to_owned(), sandboxes: None, key: "k".to_owned() };
        Remote::new(&address).unwrap()
    }

    #[tokio::test]
    async fn each_listed_tool_is_called_and_checks_its_arguments() {
        let wrong: JsonObject = serde_json::from_str(r#"{"no_such_argument": 1}"#).unwrap();
        for tool in all() {
            let failed = call(&nowhere(), &tool.name, wrong.clone()).await.unwrap_err();
            assert!(matches!(failed, Error::Arguments(_)), "{}: {failed}", tool.name);
        }
        assert!(matches!(call(&nowhere(), "no_such_tool", wrong).await, Err(Error::NoTool(_))));
    }

    #[test]
    fn each_argument_has_a_description() {
        for tool in all() {
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            for (name, schema) in tool.input_schema["properties"].as_object().into_iter().flatten() {
                assert!(schema["description"].is_string(), "{}: {name}", tool.name);
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_told() {
        let failed = call(&nowhere(), "list_sandboxes", JsonObject::new()).await.unwrap_err();
        assert!(base::error::chain(&failed).starts_with("the server does not answer: "), "{failed}");
    }
}
