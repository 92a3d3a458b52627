//! Sandboxes as tools for agents: a server of the Model Context Protocol on the standard streams of a process.
//!
//! ```text
//!   agent ◄─ JSON lines on stdin and stdout ─► tools ─► remote ─► REST and envd of a `pando serve`
//! ```
//!
//! `tools` has what an agent sees: names, schemas, bounds of answers. `remote` is the client of the server. A call that
//! fails answers with a text for the agent, and never ends the process.

mod address;
mod error;
mod kept;
mod remote;
mod run;
mod tools;

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
    transport::stdio,
};

pub use address::Address;
pub use error::Error;
use remote::Remote;

const INSTRUCTIONS: &str = "Isolated Linux sandboxes. create_sandbox makes one; run_command, run_code and the file \
                            tools work in it; fork_sandbox copies it with its memory, so that several attempts start \
                            from one state; kill_sandbox removes it. Sandboxes end by themselves when their timeout \
                            is over.";

/// The tools, for one server and key.
#[derive(Debug)]
struct Tools {
    remote: Remote,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("pando", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let result = match tools::call(&self.remote, &request.name, arguments).await {
            Ok(value) => CallToolResult::structured(value),
            Err(Error::NoTool(name)) => {
                return Err(ErrorData::invalid_params(format!("there is no tool {name:?}"), None));
            }
            Err(error) => CallToolResult::error(vec![ContentBlock::text(base::error::chain(&error))]),
        };
        Ok(result.into())
    }
}

/// Serves one client on standard input and output, until it closes them.
///
/// # Errors
///
/// If the client's first messages are not those of the protocol.
pub async fn serve(address: &Address) -> Result<(), Error> {
    let tools = Tools { remote: Remote::new(address)? };
    let running = tools.serve(stdio()).await.map_err(|error| Error::Client(error.to_string()))?;
    running.waiting().await.map_err(|error| Error::Client(error.to_string()))?;
    Ok(())
}
