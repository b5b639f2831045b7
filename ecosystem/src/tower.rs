//! A limit for the time of each request, and retries with growing pauses, for services of tower 0.5.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Map;
use tickwheel::Scheduler;
use tickwheel::time::error::Elapsed;
use tickwheel::time::{Sleep, Timeout};
use tower::retry::Policy;
use tower::{BoxError, Layer, Service};

/// `ServiceBuilder::new().layer(LimitLayer { scheduler, limit }).service(inner)`
#[derive(Clone, Debug)]
pub struct LimitLayer {
    pub scheduler: Scheduler,
    pub limit: Duration,
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit { inner, layer: self.clone() }
    }
}

/// A service whose requests fail with [`Elapsed`] when their time is up. No request waits without a limit, also if the
/// scheduler is closed or full.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: S,
    layer: LimitLayer,
}

type Limited<T, E> = Result<Result<T, E>, Elapsed>;

impl<S: Service<Q>, Q> Service<Q> for Limit<S>
where
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Map<
        Timeout<S::Future>,
        fn(Limited<S::Response, S::Error>) -> Result<S::Response, BoxError>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let answer = self.inner.call(request);
        self.layer
            .scheduler
            .timeout(self.layer.limit, answer)
            .map(|limited| limited?.map_err(Into::into))
    }
}

/// A policy for tower's `RetryLayer`: so many retries, the first one after `pause`, then twice as much, and so on.
#[derive(Clone, Debug)]
pub struct Backoff {
    pub scheduler: Scheduler,
    pub pause: Duration,
    pub retries: u32,
}

impl<Q: Clone, T, E> Policy<Q, T, E> for Backoff {
    type Future = Sleep;

    fn retry(&mut self, _request: &mut Q, result: &mut Result<T, E>) -> Option<Sleep> {
        result.as_ref().err()?;
        self.retries = self.retries.checked_sub(1)?;
        let sleep = self.scheduler.sleep(self.pause);
        self.pause = self.pause.saturating_mul(2);
        Some(sleep)
    }

    fn clone_request(&mut self, request: &Q) -> Option<Q> {
        Some(request.clone())
    }
}
