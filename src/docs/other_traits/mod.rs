//! Timers for the traits of other crates: which type to give them, and the glue to copy.
//!
//! Such a trait asks for a future without errors, which it can name, move and share. That is a
//! [`Delay`](crate::future::Delay), with `Output = ()`, `Unpin`, `Send` and `Sync`. If its scheduler is closed or full,
//! it waits elsewhere for the rest of its time. So the code behind the trait, which has no way to report an error,
//! neither spins nor hangs. Take a [`Sleep`](crate::future::Sleep) where your own code can handle the error, and a
//! [`Timeout`](crate::future::Timeout) where a future is to be limited.
//!
//! | trait | give it | how |
//! | --- | --- | --- |
//! | `hyper::rt::Timer`, also for the pool of `hyper-util` | a [`Scheduler`](crate::Scheduler) | the feature `hyper`; nothing to write |
//! | `hyper::rt::Sleep` | a [`Delay`](crate::future::Delay) | the same feature |
//! | `futures_core::FusedFuture`, `Stream`, `FusedStream` | [`Sleep`](crate::future::Sleep), [`Delay`](crate::future::Delay), [`Interval`](crate::future::Interval) and others | the feature `futures-core` |
//! | `quinn::Runtime`, `quinn::AsyncTimer` | a runtime around a `Delay` | [below](#quinn) |
//! | `tower::Layer`, `tower::Service` | a service whose future is a [`Timeout`](crate::future::Timeout) | [below](#tower) |
//! | `tower::retry::Policy` | a `Delay` as its `Future` | [below](#tower) |
//! | `backon::Sleeper` | a `Delay` as its `Sleep` | [below](#backon) |
//! | `aws_smithy_async::rt::sleep::AsyncSleep` | a `Delay` in its box | [below](#aws-sdk) |
//!
//! The glue is not part of this crate, because each of these crates has versions of its own. Copy the file that you
//! need. Each one is compiled and run as a test of this repository (in `ecosystem`), against the version that it names.
//!
//! To test such code in virtual time, make the scheduler with [`build_driven`](crate::Builder::build_driven): see
//! [`testing`](crate::testing).
//!
//! # quinn
//!
//! ```ignore
#![doc = include_str!("quinn.rs")]
//! ```
//!
//! # tower
//!
//! ```ignore
#![doc = include_str!("tower.rs")]
//! ```
//!
//! # backon
//!
//! ```ignore
#![doc = include_str!("backon.rs")]
//! ```
//!
//! # AWS SDK
//!
//! ```ignore
#![doc = include_str!("aws_smithy_async.rs")]
//! ```
