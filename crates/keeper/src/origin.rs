//! The HTTP request that a task of the server works for. Calls to the keeper carry its id, so log lines of server, keeper and builder can be
//! joined.

use base::id::RequestId;
use tracing::Instrument;

tokio::task_local! {
    static ORIGIN: RequestId;
}

/// Runs a future for a request.
pub async fn serve<F: Future>(id: RequestId, future: F) -> F::Output {
    ORIGIN.scope(id, future).await
}

/// A future that may run in a task of its own, and still works for the request of this task and logs in its span.
pub fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let id = current();
    let carried = async move {
        match id {
            Some(id) => ORIGIN.scope(id, future).await,
            None => future.await,
        }
    };
    carried.in_current_span()
}

/// The request that this task works for.
pub(crate) fn current() -> Option<RequestId> {
    ORIGIN.try_with(Clone::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_works_for_a_request_only_if_that_is_carried() {
        let id: RequestId = "client-1".parse().unwrap();
        let tasks = serve(id.clone(), async {
            [tokio::spawn(carried(async { current() })), tokio::spawn(async { current() })]
        });
        let [carried, plain] = tasks.await;
        assert_eq!((carried.await.unwrap(), plain.await.unwrap(), current()), (Some(id), None, None));
    }
}
