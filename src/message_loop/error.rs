//! What can be wrong with a thread and its loop.

use thiserror::Error;

/// The thread has a loop already, or is about to end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "this thread has a message loop already, or is about to end: use `MessageLoop::current`, or drop the other one first"
)]
pub struct AlreadyBound;

/// The thread has no loop.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "this thread has no message loop: call `MessageLoop::prepare` on it, or use a `LoopThread`"
)]
pub struct NotBound;

/// A loop's thread would wait for itself.
///
/// What [`LoopThread::join`](super::LoopThread::join) carries when it is called on the very thread that it
/// is to wait for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "a loop's thread cannot wait for its own end: call `join` on another thread, or just `quit`"
)]
pub struct WouldDeadlock;
