//! The crate beside other people's crates.

#[path = "../../../tests/common/mod.rs"]
mod common;

mod aws_smithy_async;
mod backon;
mod features;
mod fused;
mod hyper_timer;
mod hyper_util;
mod quinn;
mod runtimes;
mod streams;
mod tower;
mod workers;
